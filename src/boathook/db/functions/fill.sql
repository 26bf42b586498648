-- A column of a batch: one value stands for as many equal ones as there are ids.
create function boathook.fill(p_values anyarray, p_ids uuid[]) returns anyarray language sql immutable as $$
    select case when cardinality(p_values) = 1 then array_fill(p_values[1], array[cardinality(p_ids)]) else p_values end
$$;

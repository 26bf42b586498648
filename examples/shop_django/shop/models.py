"""The tables."""

from django.db import models


class Order(models.Model):
    """An order of a customer."""

    id = models.CharField(primary_key=True, max_length=50)
    amount = models.IntegerField()
    is_paid = models.BooleanField(default=False)

    def __str__(self) -> str:
        """Return the order's id."""
        return self.id

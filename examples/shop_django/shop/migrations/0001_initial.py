"""The first tables."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates the table of orders."""

    initial = True
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.CharField(max_length=50, primary_key=True, serialize=False)),
                ("amount", models.IntegerField()),
                ("is_paid", models.BooleanField(default=False)),
            ],
        ),
    )

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pulse", "0001_pulse_1_0")]
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("email", models.TextField(unique=True)),
                ("job_id", models.TextField(blank=True)),
            ],
        ),
    ]

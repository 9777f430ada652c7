from django.db import migrations, models

from pulse.django.operations import InstallPulse


class Migration(migrations.Migration):
    initial = True
    atomic = False
    operations = [
        InstallPulse("1.0", first=True),
        migrations.CreateModel(
            name="Queue",
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
            ],
            options={
                "base_manager_name": "objects",
                "managed": False,
                "default_permissions": ("view",),
                "verbose_name": "queue",
                "verbose_name_plural": "queue",
            },
        ),
    ]

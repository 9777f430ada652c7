from django.db import migrations

from pulse.django.operations import InstallPulse


class Migration(migrations.Migration):
    atomic = False
    initial = True
    operations = [InstallPulse("1.0", first=True)]

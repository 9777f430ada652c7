"""pulse in a Django project: INSTALLED_APPS += ["pulse.django"].

The app installs pulse with a migration, runs Django's tasks with PulseBackend and
brings manage.py pulse_worker.
"""

"""A small project; the PG* of the environment lead to its database."""

import os

import django

DEBUG = False
SECRET_KEY = "for tests only"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "config.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *(["django_tasks"] if django.VERSION < (6, 0) else []),
    "pulse.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGDATABASE", "app"),
        "USER": os.environ.get("PGUSER", ""),
        "HOST": os.environ.get("PGHOST", ""),
        "PORT": os.environ.get("PGPORT", ""),
    }
}

PULSE_APPLICATION = os.environ.get("PULSE_APPLICATION", "shop") or None
TASKS = {
    "default": {
        "BACKEND": "pulse.django.PulseBackend",
        "QUEUES": ["default", "mail"],
    },
    "once": {
        "BACKEND": "pulse.django.PulseBackend",
        "OPTIONS": {"max_attempts": 1, "tags": ["once"]},
    },
    "heavy": {
        "BACKEND": "pulse.django.PulseBackend",
        "QUEUES": ["heavy"],
        "OPTIONS": {"executor": "process"},
    },
}
if "CONN_MAX_AGE" in os.environ:
    DATABASES["default"]["CONN_MAX_AGE"] = None

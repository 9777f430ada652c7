from django.db import models


class Order(models.Model):
    email = models.TextField(unique=True)
    job_id = models.TextField(blank=True)

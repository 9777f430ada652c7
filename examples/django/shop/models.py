from django.db import models


class Order(models.Model):
    email = models.EmailField()
    confirmed_at = models.DateTimeField(null=True)
    # The id of the TaskResult, which is that of the job.
    task = models.CharField(max_length=20, blank=True)

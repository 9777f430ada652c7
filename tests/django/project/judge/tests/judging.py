"""What the adapted tests share."""

from django.db import connection

from shop.framework import framework

LOGGER = framework.__name__


def jobs(state: str | None = None) -> list[str]:
    """The ids of the jobs there are, in the order they run in."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT j.job_id::text FROM pulse.jobs AS j"
            " WHERE %s::text IS NULL OR j.state = %s::text"
            " ORDER BY j.priority DESC, j.ready_at, j.job_id",
            [state, state],
        )
        return [row[0] for row in cursor.fetchall()]

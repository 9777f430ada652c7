"""The statements that only pulse.testing sends."""

from typing import Final

PLACE: Final = """
SELECT j.lane, j.kind, j.priority FROM pulse.jobs AS j WHERE j.job_id = %(job_id)s"""

LATER: Final = """
SELECT j.job_id, j.run_at - CAST(%(by)s AS interval)
FROM pulse.jobs AS j
WHERE j.state IN ('scheduled', 'retrying')
ORDER BY j.run_at, j.job_id"""

# As text, because drivers decode jsonb differently.
JOBS: Final = """
SELECT CAST(to_jsonb(j) AS text) FROM pulse.jobs AS j WHERE j.kind = %(kind)s"""

STATEMENTS: Final = {"place": PLACE, "later": LATER, "jobs": JOBS}

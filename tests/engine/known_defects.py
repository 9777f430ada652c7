"""Defects of the engine that the random model knows, one flag for each.

A flag that is True makes the model avoid exactly the trigger of that defect, so that
the model is green and finds what is new. test_known_defects.py has a test for each
point that fails as long as the defect is there. A fix deletes the flag, the branches
that read it, and the mark of its test.
"""

from __future__ import annotations

from typing import Final

# Points 1, 2, 6 and 13 are done: their tests are plain ones.

# Point 3, guarantee 23: a job that is back in line loses its place by reschedule,
# replace and follow. Avoided: these three leave such a job alone.
A_JOB_BACK_IN_LINE_LOSES_ITS_PLACE: Final = True

# Point 4, guarantee 23: a run keeps the place that in_order gave it at its claim.
# Avoided: in_order changes while no job of the lane runs or keeps a place.
PLACES_ARE_WRITTEN_BY_CLAIMS_ALONE: Final = True

# Point 5, guarantee 19: a job whose start_by has passed uses up a turn of its group.
# Avoided: tick() cancels such jobs before a claim of a lane with groups.
LATE_JOBS_USE_UP_TURNS: Final = True

# Points 7, 8, 9 and 10 are done: their tests are plain ones.

# Point 11, guarantee 16: a follower that ends gives the key of the job before it free.
# Avoided: a job with unique_for gets no follower.
A_FOLLOWER_ENDS_UNIQUE_FOR: Final = True

# Point 12: a follower waits for the jobs that the run spawned. Avoided: a job with a
# key spawns nothing.
A_FOLLOWER_WAITS_FOR_SPAWNED_JOBS: Final = True

# Point 14: enqueue_one answers created = false with the id of a new job. Avoided:
# enqueue_one is not called where a job that awaits approval has the key.
A_NEW_JOB_IS_NOT_CALLED_CREATED: Final = True

# Point 15: why() says too early that the next claim takes a job. Avoided: the model
# does not compare what why() says with the next claim.

# New, guarantee 19: a claim of several jobs deals the starts that the rate of a kind
# has left to the groups whose first job is of that kind. A group then starts one job
# where its turns allow two, and another group starts twice. Avoided: a claim of a
# grouped lane asks for one job while a kind has a rate.
THE_RATE_OF_A_KIND_SHORTENS_TURNS: Final = True

# New, as point 5: a job whose start_by has passed takes the last start that the rate of
# its kind has left in a claim. The claim starts a job of lower priority, and the job
# behind it waits for the next claim. Avoided: tick() cancels late jobs first.
LATE_JOBS_USE_UP_STARTS: Final = True

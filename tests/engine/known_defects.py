"""Defects of the engine that the random model knows, one flag for each.

A flag that is True makes the model avoid exactly the trigger of that defect, so that
the model is green and finds what is new. test_known_defects.py has a test for each
point that fails as long as the defect is there. A fix deletes the flag, the branches
that read it, and the mark of its test.
"""

from __future__ import annotations

from typing import Final

# Points 1 to 6 and 13 are done: their tests are plain ones.

# Points 7, 8, 9 and 10 are done: their tests are plain ones.

# Point 11, guarantee 16: a follower that ends gives the key of the job before it free.
# Avoided: a job with unique_for gets no follower.
A_FOLLOWER_ENDS_UNIQUE_FOR: Final = True

# Points 12 and 14 are done: their tests are plain ones.

# Point 15: why() says too early that the next claim takes a job, before a claim has
# sorted the jobs into their groups. Avoided: the model does not compare what why()
# says with the next claim.

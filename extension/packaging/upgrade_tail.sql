-- part: access

-- New functions and those that were dropped and made again have no grants yet.
SELECT pulse._apply_grants();


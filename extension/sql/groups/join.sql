-- How a job joins the line of its group, how the end of a run and a job that is taken out
-- are announced. Nothing here waits for anybody (docs/decisions/limits.md).

CREATE FUNCTION pulse_internal.is_grouped(lane text)
RETURNS boolean
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    RETURN EXISTS (
        SELECT
        FROM pulse_internal.lane AS l
        WHERE l.lane = is_grouped.lane
            AND l.grouped
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.is_grouped(text) IS
'Whether jobs of a lane stand in groups.';

-- Asked by an enqueue that has a key, before anything is written.
CREATE FUNCTION pulse_internal.joins_group(lane text, group_key text)
RETURNS boolean
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF joins_group.group_key = '' OR NOT pulse_internal.is_grouped(joins_group.lane) THEN
        RETURN false;
    END IF;
    IF octet_length(joins_group.group_key) > 1000 THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('group_key is too long for lane %L', joins_group.lane),
            format(
                'It has %s bytes; in a lane whose jobs stand in groups at most 1000 are allowed.',
                octet_length(joins_group.group_key)
            ),
            'Use a shorter key, or a hash of it.'
        );
    END IF;
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.joins_group(text, text) IS
'Whether a job with this key stands in a group of the lane; PU002 for a key that is too long there.';

CREATE FUNCTION pulse_internal.group_of(group_key text)
RETURNS text
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN CASE
        WHEN octet_length(group_of.group_key) > 1000 THEN md5(group_of.group_key)
        ELSE coalesce(group_of.group_key, '')
    END;
END;
$$;

COMMENT ON FUNCTION pulse_internal.group_of(text) IS
'The group of a key: the key itself, its md5 when it is too long for an index, '''' when there is none.';

CREATE FUNCTION pulse_internal.group_key(job bigint)
RETURNS text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT b.group_key
    FROM pulse_internal.body AS b
    WHERE b.job = group_key.job
$$;

COMMENT ON FUNCTION pulse_internal.group_key(bigint) IS
'The group_key of a job, if it has one.';

-- A statement of its own, called where a lease had a group: as part of the report it would
-- cost every report.
CREATE FUNCTION pulse_internal.notice_ends(groups pulse_internal.lane_group [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF cardinality(notice_ends.groups) = 1 THEN
        INSERT INTO pulse_internal.group_notice (lane, group_key)
        VALUES ((notice_ends.groups[1]).lane, (notice_ends.groups[1]).group_key);
        PERFORM pulse_internal.ring((notice_ends.groups[1]).lane);
        RETURN;
    END IF;

    INSERT INTO pulse_internal.group_notice (lane, group_key, ended)
    SELECT g.lane, '', array_agg(DISTINCT g.group_key)
    FROM unnest(notice_ends.groups) WITH ORDINALITY AS g (lane, group_key, nth)
    GROUP BY g.lane, g.nth / 100;

    PERFORM pulse_internal.ring(l.lane)
    FROM (SELECT DISTINCT g.lane FROM unnest(notice_ends.groups) AS g) AS l;
END;
$$;

COMMENT ON FUNCTION pulse_internal.notice_ends(pulse_internal.lane_group []) IS
'Announce that runs of these groups have ended, and ring.';

CREATE FUNCTION pulse_internal.notice_leaving(line pulse_internal.ready)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO pulse_internal.group_notice (lane, group_key, rank, place)
    VALUES (
        (notice_leaving.line).lane, (notice_leaving.line).group_key,
        (notice_leaving.line).rank, (notice_leaving.line).seq
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.notice_leaving(pulse_internal.ready) IS
'Announce that a job was taken out of the line of its group without being claimed.';

-- A job that has run and is back in line is still the next one of its group. A job that has not run
-- yet has no place to keep: its group does not wait for it.
CREATE FUNCTION pulse_internal.kept_place(line pulse_internal.ready)
RETURNS bigint
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    IF (kept_place.line).group_key <> '' AND (kept_place.line).attempts > 0 AND EXISTS (
        SELECT
        FROM pulse_internal.lane AS l
        WHERE l.lane = (kept_place.line).lane
            AND l.in_order
    ) THEN
        RETURN (kept_place.line).seq;
    END IF;
    RETURN NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.kept_place(pulse_internal.ready) IS
'The place that a job keeps when it is taken out of line until a later time; NULL when it keeps none.';

-- A job that kept its place while its group waited for it.
CREATE FUNCTION pulse_internal.put_back_in_group(line pulse_internal.ready)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO pulse_internal.ready
    SELECT (put_back_in_group.line).*;

    INSERT INTO pulse_internal.group_notice (lane, group_key, rank, place, kind)
    VALUES
    (
        (put_back_in_group.line).lane, (put_back_in_group.line).group_key,
        (put_back_in_group.line).rank, (put_back_in_group.line).seq,
        (put_back_in_group.line).kind
    ),
    (
        (put_back_in_group.line).lane, (put_back_in_group.line).group_key, NULL, NULL, NULL
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.put_back_in_group(pulse_internal.ready) IS
'Put a job into the line of its group at the place it had, and announce both that and the end of the wait.';

CREATE FUNCTION pulse_internal.notice_wait_over(lane text, job bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.notice_ends(ARRAY[
        ROW(
            notice_wait_over.lane,
            pulse_internal.group_of(pulse_internal.group_key(notice_wait_over.job))
        )::pulse_internal.lane_group
    ]);
END;
$$;

COMMENT ON FUNCTION pulse_internal.notice_wait_over(text, bigint) IS
'Announce that a job for which its group waited was taken out of waiting, and ring.';

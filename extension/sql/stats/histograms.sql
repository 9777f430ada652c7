-- Histograms of waits and runs: their bounds, adding to them, and quantiles of them.

CREATE FUNCTION pulse.histogram_bounds()
RETURNS double precision []
LANGUAGE sql
IMMUTABLE
PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT '{0.005,0.01,0.05,0.1,0.5,1,2.5,5,10,30,60,300,900,3600,21600}'::double precision []
$$;

COMMENT ON FUNCTION pulse.histogram_bounds() IS
'The upper bounds, in seconds, of the places of wait_counts and run_counts; the place after the last is for what is longer. Writes nothing.';

-- Called by reports: constant, so it is no call when they run. As intervals, since
-- taking seconds out of one costs more than finding its place.
CREATE FUNCTION pulse_internal.histogram_intervals()
RETURNS interval []
LANGUAGE sql
IMMUTABLE
PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(make_interval(secs => b.upper) ORDER BY b.upper)
    FROM unnest(pulse.histogram_bounds()) AS b (upper)
$$;

COMMENT ON FUNCTION pulse_internal.histogram_intervals() IS
'The bounds of the histograms as intervals.';

CREATE FUNCTION pulse_internal.add_to_histogram(
    counts bigint [], buckets integer [], jobs bigint []
)
RETURNS bigint []
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        array_agg(
            coalesce(add_to_histogram.counts[p.place], 0) + coalesce(m.jobs, 0)
            ORDER BY p.place
        )
    FROM generate_series(1, cardinality(pulse.histogram_bounds()) + 1) AS p (place)
    LEFT JOIN (
        SELECT u.bucket + 1 AS place, sum(u.jobs)::bigint AS jobs
        FROM unnest(add_to_histogram.buckets, add_to_histogram.jobs) AS u (bucket, jobs)
        WHERE u.bucket IS NOT NULL
        GROUP BY u.bucket
    ) AS m ON m.place = p.place
$$;

COMMENT ON FUNCTION pulse_internal.add_to_histogram(bigint [], integer [], bigint []) IS
'A histogram with so many jobs more in these places.';

CREATE FUNCTION pulse.histogram_quantile(counts bigint [], quantile double precision)
RETURNS double precision
LANGUAGE sql
IMMUTABLE
PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    -- Evenly spread inside a place; what is beyond the last bound is at it.
    SELECT
        CASE
            WHEN b.upper IS NULL THEN b.lower
            ELSE b.lower + (b.upper - b.lower) * (b.wanted - b.below) / b.here
        END
    FROM (
        SELECT
            c.jobs AS here,
            sum(c.jobs) OVER (ORDER BY c.place) - c.jobs AS below,
            sum(c.jobs) OVER () * least(greatest(histogram_quantile.quantile, 0), 1) AS wanted,
            coalesce((pulse.histogram_bounds())[c.place - 1], 0) AS lower,
            (pulse.histogram_bounds())[c.place] AS upper,
            c.place
        FROM unnest(histogram_quantile.counts) WITH ORDINALITY AS c (jobs, place)
    ) AS b
    WHERE b.here > 0
        AND b.below + b.here >= b.wanted
    ORDER BY b.place
    LIMIT 1
$$;

COMMENT ON FUNCTION pulse.histogram_quantile(bigint [], double precision) IS
'The seconds below which this share (0 to 1) of the jobs of a histogram lies, evenly spread inside a place; NULL when it is empty. Writes nothing.';

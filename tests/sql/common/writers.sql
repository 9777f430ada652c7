-- Which functions put a row into each table that says where a job or a group stands. A verb that
-- moves a job calls put_in_line, which keeps its place and its group.

BEGIN;
SELECT plan(1);

SELECT results_eq(
    $$
    SELECT
        t.place COLLATE "default",
        string_agg(p.proname::text, ' ' ORDER BY p.proname::text COLLATE "C") COLLATE "default"
    FROM unnest('{approval,blocked,finished,group_notice,group_state,lease,ready,waiting}'::text []) AS t (place)
    INNER JOIN pg_proc AS p
        ON p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.prosrc ~ ('INSERT INTO pulse_internal\.' || t.place || '\M')
    GROUP BY t.place
    ORDER BY t.place
    $$,
    $$VALUES
('approval', 'correct_approvals enqueue_slow_path put_unblocked replace_awaiting shift'),
('blocked', 'block_again follow put_after'),
('finished', 'complete_batch ended_badly fail_runs finish_cancelled put_after'),
('group_notice', 'announce_groups enqueue_payloads enqueue_slow_path expire_page notice_back notice_ends notice_leaving promote_to_groups put_back_in_group put_in_line sort_into_groups'),
('group_state', 'write_groups'),
('lease', 'claim_batch fail_unsent'),
('ready', 'enqueue_payloads enqueue_slow_path leave_groups promote promote_to_groups put_back_in_group put_in_line sort_into_groups take_request unblock_rows'),
('waiting', 'correct_retries enqueue_payloads fail_runs put_in_line')
    $$,
    'each table has the writers that are known'
);

SELECT * FROM finish();
ROLLBACK;

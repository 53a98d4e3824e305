-- name: meta
SELECT value FROM meta WHERE name = :name
-- name: set_meta
INSERT INTO meta (name, value) VALUES (:name, :value) ON CONFLICT DO UPDATE SET value = excluded.value

-- name: job
SELECT * FROM jobs WHERE token = :token
-- name: save_job
-- In the order of the table's columns, as `convert.job_to_row` has them.
INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
-- name: open_jobs
SELECT * FROM jobs INDEXED BY jobs_open WHERE state != 'done' AND (:user = '' OR user = :user)
    ORDER BY token DESC LIMIT :most
-- name: newest_jobs
SELECT * FROM (SELECT * FROM jobs ORDER BY token DESC LIMIT :looked) WHERE :user = '' OR user = :user LIMIT :most
-- name: others_open_jobs
SELECT count(*) AS n FROM jobs INDEXED BY jobs_open WHERE state != 'done' AND user != :user
-- name: others_newest_jobs
SELECT count(*) AS n FROM (SELECT user FROM jobs ORDER BY token DESC LIMIT :looked) WHERE user != :user
-- name: jobs_between
SELECT * FROM jobs WHERE token BETWEEN :low AND :high ORDER BY token LIMIT :most
-- name: spec
SELECT spec FROM specs WHERE token = :token
-- name: add_spec
INSERT INTO specs (token, spec) VALUES (:token, :spec)
-- name: drop_spec
DELETE FROM specs WHERE token = :token
-- name: due_jobs
-- What is due further ahead than anything is ever put is due too: the calendar was set back.
SELECT token FROM jobs WHERE due_at IS NOT NULL AND (due_at <= :now OR due_at > :latest) ORDER BY due_at LIMIT :most
-- name: count_jobs
SELECT state, site, pool, count(*) AS n FROM jobs WHERE state != 'done' GROUP BY state, site, pool
-- name: at_target
-- To SQLite `state IN` does not imply the `!= 'done'` of the index, without which all that are remembered are looked at.
SELECT * FROM jobs WHERE state != 'done' AND site = :site AND token > :after
    AND state IN ('sending', 'outcome_unknown', 'accepted', 'running', 'stopping', 'requeuing', 'results_pending')
    ORDER BY token LIMIT :most
-- name: leases_over_at
SELECT * FROM jobs WHERE state != 'done' AND site = :site AND on_silence = 'replace' AND lease_s < :silence
    AND state IN ('sending', 'outcome_unknown', 'accepted', 'running', 'requeuing') LIMIT :most
-- name: wake_site
UPDATE jobs SET due_at = :now, tries = 0
    WHERE state != 'done' AND state IN ('sending', 'outcome_unknown', 'results_pending') AND site = :site
-- name: wake_queued
UPDATE jobs SET due_at = :now WHERE token IN (
    SELECT token FROM jobs WHERE state = 'queued' AND due_at > :now ORDER BY due_at, token LIMIT :most
)
-- name: spent
SELECT coalesce((SELECT sum(cost) FROM jobs WHERE account = :account AND cost_day = :day AND cost > 0), 0.0)
    + coalesce((SELECT money FROM charges WHERE account = :account AND day = :day), 0.0) AS cost
-- name: charge
INSERT INTO charges VALUES (:account, :day, :money)
    ON CONFLICT DO UPDATE SET money = charges.money + excluded.money
-- name: drop_charges
DELETE FROM charges WHERE day < :day
-- name: drop_done_jobs
DELETE FROM jobs WHERE token IN (
    SELECT token FROM jobs WHERE state = 'done' AND ended_at < :before
        AND NOT EXISTS (SELECT 1 FROM commands WHERE commands.token = jobs.token)
    ORDER BY ended_at LIMIT :most
)
-- name: count_done_jobs
SELECT count(*) AS n FROM jobs WHERE state = 'done'

-- name: save_command
INSERT INTO commands VALUES (:token, :attempt, :kind, :number, :value, :site, :pool, :due_at, :tries)
    ON CONFLICT DO UPDATE SET due_at = excluded.due_at, tries = excluded.tries
-- name: due_commands
SELECT * FROM commands WHERE due_at <= :now OR due_at > :latest ORDER BY due_at LIMIT :most
-- name: commands_of
SELECT * FROM commands WHERE token = :token AND attempt = :attempt
-- name: drop_command
DELETE FROM commands WHERE token = :token AND attempt = :attempt AND kind = :kind AND number <= :number
-- name: wake_commands
UPDATE commands SET due_at = :now, tries = 0 WHERE site = :site

-- name: followed
SELECT * FROM followed WHERE site = :site
-- name: save_followed
INSERT OR REPLACE INTO followed VALUES (:site, :journal, :cursor)

-- name: attempt
SELECT * FROM attempts WHERE token = :token AND attempt = :attempt
-- name: save_attempt
INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
-- name: attempt_spec
SELECT spec FROM attempt_specs WHERE token = :token AND attempt = :attempt
-- name: add_attempt_spec
INSERT INTO attempt_specs (token, attempt, spec) VALUES (:token, :attempt, :spec)
-- name: drop_attempt_spec
DELETE FROM attempt_specs WHERE token = :token AND attempt = :attempt
-- name: due_attempts
SELECT token, attempt FROM attempts WHERE due_at IS NOT NULL AND (due_at <= :now OR due_at > :latest) ORDER BY due_at LIMIT :most
-- name: attempts_since
SELECT * FROM attempts WHERE origin = :origin AND revision > :after ORDER BY revision LIMIT :most
-- name: attempts_after
SELECT * FROM attempts WHERE (token, attempt) > (:token, :attempt) ORDER BY token, attempt LIMIT :most
-- name: count_attempts
SELECT pool, origin, count(*) AS n FROM attempts WHERE state NOT IN ('ended', 'released') GROUP BY pool, origin
-- name: held_bytes
SELECT coalesce(sum(input_bytes), 0) AS n FROM attempts
    WHERE origin = :origin AND input_bytes > 0 AND state != 'released'
-- name: leases_over_from
SELECT * FROM attempts WHERE origin = :origin AND lease_s IS NOT NULL AND lease_s < :silence
    AND state IN ('staging', 'ready', 'submitting', 'pending', 'running') LIMIT :most
-- name: has_lease
SELECT 1 FROM attempts WHERE origin = :origin AND lease_s IS NOT NULL LIMIT 1
-- name: heard
SELECT * FROM heard
-- name: save_heard
INSERT OR REPLACE INTO heard VALUES (:origin, :at)
-- name: wake_attempts
-- After a restart the backend is asked about everything that it may have, before anything is done.
UPDATE attempts SET due_at = :now, misses = 0
    WHERE state NOT IN ('ended', 'released') AND state IN ('ready', 'submitting', 'pending', 'running', 'stopping')
-- name: wake_waiting
-- Those that wait for room, and what failed there: a pool of which jobs end is well.
UPDATE attempts SET due_at = :now WHERE (token, attempt) IN (
    SELECT token, attempt FROM attempts WHERE pool = :pool AND state NOT IN ('ended', 'released')
        AND state = 'ready' AND due_at > :now ORDER BY due_at, token LIMIT :most
)
-- name: drop_nobodys
DELETE FROM attempts WHERE (token, attempt) IN (
    SELECT token, attempt FROM attempts WHERE state = 'released' AND user = '' AND due_at IS NULL AND ended_at < :before
        ORDER BY ended_at LIMIT :most
)
-- name: drop_released
DELETE FROM attempts WHERE (token, attempt) IN (
    SELECT token, attempt FROM attempts WHERE state = 'released' AND due_at IS NULL AND ended_at < :before
        ORDER BY ended_at LIMIT :most
)

-- name: save_burst
-- In the order of the table's columns. Two that are not closed of one JobId: an error, never one in the other's place.
INSERT INTO bursts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (token) DO UPDATE SET submitted_at = excluded.submitted_at, restarts = excluded.restarts,
        started_at = excluded.started_at, node = excluded.node, phase = excluded.phase,
        stdout_base = excluded.stdout_base, stderr_base = excluded.stderr_base, began_at = excluded.began_at,
        told = excluded.told, suspended = excluded.suspended, partitions = excluded.partitions,
        closed_at = excluded.closed_at, why = excluded.why, written = excluded.written,
        stdout_own = excluded.stdout_own, stderr_own = excluded.stderr_own,
        stdout_acked = excluded.stdout_acked, stderr_acked = excluded.stderr_acked,
        stdout_most = excluded.stdout_most, stderr_most = excluded.stderr_most
-- name: open_bursts
SELECT * FROM bursts WHERE phase != 'closed' ORDER BY +token LIMIT :most
-- name: open_burst_of
SELECT * FROM bursts WHERE job_id = :job_id AND phase != 'closed'
-- name: burst
SELECT * FROM bursts WHERE token = :token
-- name: bursts_of
SELECT * FROM bursts WHERE job_id = :job_id ORDER BY token DESC LIMIT :most
-- name: bursts_of_array
SELECT * FROM bursts WHERE array_id > 0 AND array_id = :array_id AND (:task_id < 0 OR task_id = :task_id) ORDER BY token DESC LIMIT :most
-- name: newest_bursts
SELECT * FROM (SELECT * FROM bursts ORDER BY token DESC LIMIT :looked) WHERE :user = '' OR user = :user LIMIT :most
-- name: others_newest_bursts
SELECT count(*) AS n FROM (SELECT user FROM bursts ORDER BY token DESC LIMIT :looked) WHERE user != :user
-- name: drop_closed_bursts
DELETE FROM bursts WHERE token IN (
    SELECT token FROM bursts WHERE phase = 'closed' AND closed_at < :before ORDER BY closed_at LIMIT :most
)

-- name: widened
SELECT * FROM widened ORDER BY root LIMIT :most
-- name: widened_as
SELECT * FROM widened WHERE root = :root
-- name: save_widened
INSERT OR REPLACE INTO widened VALUES (:root, :submitted_at, :uid, :rule, :partitions, :price, :account, :at)
-- name: drop_widened
DELETE FROM widened WHERE root = :root
-- name: spent_by_rule
-- Of jobs that were widened, whatever their burst is by now; CROSS JOIN: in this order.
SELECT rule, sum(cost) AS money FROM (
    SELECT widened.rule AS rule, jobs.cost AS cost FROM widened
        CROSS JOIN bursts ON bursts.job_id = widened.root AND bursts.array_id = 0 AND bursts.uid = widened.uid
        CROSS JOIN jobs ON jobs.token = bursts.token AND jobs.cost > 0 AND jobs.cost_day = :day
    UNION ALL
    SELECT widened.rule, jobs.cost FROM widened
        CROSS JOIN bursts ON bursts.array_id = widened.root AND bursts.array_id > 0 AND bursts.uid = widened.uid
        CROSS JOIN jobs ON jobs.token = bursts.token AND jobs.cost > 0 AND jobs.cost_day = :day
) GROUP BY rule
-- name: bursts_far
-- Those that are not closed, and how far the job of each has come: null where there is none yet.
SELECT bursts.job_id AS job_id, bursts.pool AS pool, jobs.state AS state, jobs.started_at AS started_at
    FROM bursts LEFT JOIN jobs ON jobs.token = bursts.token WHERE bursts.phase != 'closed' LIMIT :most
-- name: booked_jobs
-- Open bursts whose price counts already.
SELECT bursts.job_id AS job_id FROM bursts CROSS JOIN jobs ON jobs.token = bursts.token AND jobs.cost > 0
    WHERE bursts.phase != 'closed'

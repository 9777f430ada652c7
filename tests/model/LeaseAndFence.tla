--------------------------- MODULE LeaseAndFence ---------------------------
(***************************************************************************
One job, its runs, and workers that use leases which they lost (G1 to G6, G16).

A worker may send any report with any lease that was ever handed out, at any
time and again.  This covers answers that were lost, workers that were cut
off, and reports that are repeated.  A claim whose answer was lost is one
whose lease is never used.  tick reaps and promotes.  An operator cancels by
force, once.  Every transaction may be rolled back.

A state of the job is a row of the table with that name, as in the engine.
The unique index on job in each table is left out: the rules must hold
without it.  Time is one fact, lapsed: lease_until of the row has passed.

  action             statement
  Claim_See, _Lock   claim/claim.sql step 5: SELECT ... FOR UPDATE SKIP LOCKED
  Claim_Take         claim/claim.sql step 6: DELETE ready, INSERT lease
  Report_See, _End   report/complete.sql DELETE lease, INSERT finished;
                     report/endings.sql fail_runs;
                     report/give_back.sql release_runs
  Report_Repeat      report/endings.sql reported_before, by report_statuses
  Beat_See, _Lock    report/heartbeat.sql: SKIP LOCKED, UPDATE lease
  Reap_See, _Lock    maintenance/reap.sql: SELECT ... SKIP LOCKED, fail_runs
  Promote_See, _Lock maintenance/promote.sql: waiting to ready
  Cancel_See, _Lock  common/move_job.sql take_out, one table a statement
***************************************************************************)
EXTENDS ReadCommitted, Integers, FiniteSets

CONSTANTS
    Without,      \* the rule that is left out, or "nothing"
    Workers,      \* sessions of workers
    MaxAttempts,  \* failures with which the job is dead
    Beats,        \* heartbeats in all: a lease never outlives its deadline (G5)
    Reports,      \* reports in all
    Releases,     \* reports that are a release: these are not failures
    Rollbacks,    \* transactions that are rolled back
    Cancels       \* forced cancels

VARIABLES
    rows,     \* ready, lease, waiting and finished
    seq,      \* lease_seq
    at,       \* where a session is in its transaction
    my,       \* the local variables of a session
    left,     \* what remains of Beats, Reports, Releases, Rollbacks, cancels
    history   \* what the invariants look at; no action reads it

vars == << rows, seq, at, my, left, history >>

Sessions == Workers \cup {"tick", "operator"}
Tables == << "waiting", "ready", "lease", "finished" >>
Idle == [verb |-> "none", lease |-> 0, snap |-> {}, table |-> 0, attempt |-> 0]

Init ==
    /\ rows = { New([in |-> "ready", lease |-> 0, verb |-> "none", attempts |-> 0,
                     failures |-> 0, lapsed |-> FALSE], "none") }
    /\ seq = 0
    /\ at = [s \in Sessions |-> "idle"]
    /\ my = [s \in Sessions |-> Idle]
    /\ left = [beats |-> Beats, reports |-> Reports, releases |-> Releases,
               rollbacks |-> Rollbacks, cancels |-> Cancels]
    /\ history = [issued |-> {}, attempts |-> {}, attempt_repeated |-> FALSE,
                  other_run_ended |-> FALSE, repeat_refused |-> FALSE,
                  reaped_alive |-> FALSE]

\* A snapshot keeps what identifies a row, and what a claim copies from it.
Shown(r) == New([r EXCEPT !.lapsed = FALSE], "none")
See(s, table) == { Shown(r) : r \in { q \in Visible(rows, s) : q.in = table } }

\* A row that a snapshot showed, as it is now.  A row of ready, waiting or
\* finished is known by the lease of the run before.
Now(snap) == { r \in rows : \E o \in snap : r.in = o.in /\ r.lease = o.lease }
Free(snap, s) == { r \in Now(snap) : IsFree(r, s) }

Go(s, to) == at' = [at EXCEPT ![s] = to]
Local(s, new) == my' = [my EXCEPT ![s] = new]
Begin(s, to, local) == at[s] = "idle" /\ Go(s, to) /\ Local(s, local)
Stop(s) == Go(s, "idle") /\ Local(s, Idle)

\* The row that an end of run r leaves in place of the lease.
Ended(r, verb) ==
    [in |-> CASE verb \in {"complete", "cancel"} -> "finished"
              [] verb = "release" -> "ready"
              [] OTHER -> IF r.failures + 1 >= MaxAttempts
                          THEN "finished" ELSE "waiting",
     lease |-> r.lease,
     verb |-> verb,
     attempts |-> IF verb = "release" /\ Without = "attempts grow"
                  THEN r.attempts - 1 ELSE r.attempts,
     failures |-> IF verb \in {"fail", "reap"} THEN r.failures + 1 ELSE r.failures,
     lapsed |-> FALSE]

Replace(r, new, s) == rows' = Delete(rows, r, s) \cup {New(new, s)}

-----------------------------------------------------------------------------
Claim_See(s) ==
    /\ See(s, "ready") # {}
    /\ Begin(s, "claim_lock", [Idle EXCEPT !.snap = See(s, "ready")])
    /\ UNCHANGED << rows, seq, left, history >>

Claim_Lock(s) ==
    /\ at[s] = "claim_lock"
    /\ IF Without = "claim locks" THEN
           Go(s, "claim_take") /\ UNCHANGED << rows, my >>
       ELSE IF Free(my[s].snap, s) = {} THEN
           Stop(s) /\ UNCHANGED rows
       ELSE \E r \in Free(my[s].snap, s) :
           /\ rows' = Lock(rows, r, s)
           /\ Go(s, "claim_take")
           /\ UNCHANGED my
    /\ UNCHANGED << seq, left, history >>

Claim_Take(s) ==
    /\ at[s] = "claim_take"
    /\ LET r == CHOOSE o \in my[s].snap : TRUE
           lease == [r EXCEPT !.in = "lease", !.lease = seq + 1, !.verb = "none",
                              !.attempts = r.attempts + 1]
           there == Now({r})
       IN  /\ \A q \in there : IsFree(q, s)
           /\ rows' = { IF q \in there THEN [q EXCEPT !.held = s, !.gone = TRUE] ELSE q
                        : q \in rows } \cup {New(lease, s)}
           /\ Local(s, [Idle EXCEPT !.verb = "claim", !.lease = seq + 1,
                                    !.attempt = r.attempts + 1])
    /\ seq' = seq + 1
    /\ Go(s, "open")
    /\ UNCHANGED << left, history >>

-----------------------------------------------------------------------------
Report_See(s, verb, lease) ==
    /\ left.reports > 0
    /\ verb = "release" => left.releases > 0
    /\ Begin(s, "report_end", [Idle EXCEPT !.verb = verb, !.lease = lease, !.snap =
           { r \in See(s, "lease") : r.lease = lease \/ Without = "the fence" }])
    /\ left' = [left EXCEPT !.reports = @ - 1,
                            !.releases = IF verb = "release" THEN @ - 1 ELSE @]
    /\ UNCHANGED << rows, seq, history >>

\* Waits while another session holds the lease.
Report_End(s) ==
    /\ at[s] = "report_end"
    /\ IF Now(my[s].snap) = {} THEN
           /\ Go(s, "report_repeat")
           /\ UNCHANGED << rows, history >>
       ELSE \E r \in Free(my[s].snap, s) :
           /\ Replace(r, Ended(r, my[s].verb), s)
           /\ history' = [history EXCEPT !.other_run_ended = @ \/ r.lease # my[s].lease]
           /\ Go(s, "open")
    /\ UNCHANGED << seq, my, left >>

\* The answer is ok where this very report brought the job where it stands.  As part
\* of the statement that waited for the lease, it would read what that one has seen.
Report_Repeat(s) ==
    /\ at[s] = "report_repeat"
    /\ LET brought(seen) == \E r \in seen : r.in # "lease" /\ r.lease = my[s].lease
                                            /\ r.verb = my[s].verb
           old == Without = "repeats are looked up in a later statement"
           ok == brought(Visible(rows, s)) /\ ~(old /\ my[s].snap # {})
       IN  history' = [history EXCEPT !.repeat_refused =
                           @ \/ (brought(Committed(rows)) /\ ~ok)]
    /\ Stop(s)
    /\ UNCHANGED << rows, seq, left >>

-----------------------------------------------------------------------------
Beat_See(s, lease) ==
    /\ left.beats > 0
    /\ \E r \in See(s, "lease") :
        /\ r.lease = lease
        /\ Begin(s, "beat_lock", [Idle EXCEPT !.snap = {r}])
    /\ left' = [left EXCEPT !.beats = @ - 1]
    /\ UNCHANGED << rows, seq, history >>

Beat_Lock(s) ==
    /\ at[s] = "beat_lock"
    /\ IF Free(my[s].snap, s) = {} THEN
           Stop(s) /\ UNCHANGED rows
       ELSE \E r \in Free(my[s].snap, s) :
           /\ rows' = Lock(rows, r, s)
           /\ Local(s, [Idle EXCEPT !.verb = "beat", !.lease = r.lease])
           /\ Go(s, "open")
    /\ UNCHANGED << seq, left, history >>

Lapse ==
    /\ \E r \in Committed(rows) :
        /\ r.in = "lease" /\ ~r.lapsed
        /\ rows' = (rows \ {r}) \cup {[r EXCEPT !.lapsed = TRUE]}
    /\ UNCHANGED << seq, at, my, left, history >>

Reap_See ==
    /\ Without # "lapsed leases are reaped"
    /\ \E r \in Visible(rows, "tick") :
        /\ r.in = "lease" /\ r.lapsed
        /\ Begin("tick", "reap_lock", [Idle EXCEPT !.snap = {Shown(r)}])
    /\ UNCHANGED << rows, seq, left, history >>

Reap_Lock ==
    /\ at["tick"] = "reap_lock"
    /\ LET found == { r \in Free(my["tick"].snap, "tick") :
                      r.lapsed \/ Without = "reap checks again" }
       IN  IF found = {} THEN
               Stop("tick") /\ UNCHANGED << rows, history >>
           ELSE \E r \in found :
               /\ Replace(r, Ended(r, "reap"), "tick")
               /\ history' = [history EXCEPT !.reaped_alive = @ \/ ~r.lapsed]
               /\ Go("tick", "open") /\ UNCHANGED my
    /\ UNCHANGED << seq, left >>

Promote_See ==
    /\ See("tick", "waiting") # {}
    /\ Begin("tick", "promote_lock", [Idle EXCEPT !.snap = See("tick", "waiting")])
    /\ UNCHANGED << rows, seq, left, history >>

Promote_Lock ==
    /\ at["tick"] = "promote_lock"
    /\ IF Free(my["tick"].snap, "tick") = {} THEN
           Stop("tick") /\ UNCHANGED rows
       ELSE \E r \in Free(my["tick"].snap, "tick") :
           /\ Replace(r, [r EXCEPT !.in = "ready"], "tick")
           /\ Go("tick", "open") /\ UNCHANGED my
    /\ UNCHANGED << seq, left, history >>

-----------------------------------------------------------------------------
Cancel_Begin ==
    /\ left.cancels > 0
    /\ Begin("operator", "cancel_see", [Idle EXCEPT !.verb = "cancel", !.table = 1])
    /\ left' = [left EXCEPT !.cancels = @ - 1]
    /\ UNCHANGED << rows, seq, history >>

Cancel_See ==
    /\ at["operator"] = "cancel_see"
    /\ Go("operator", "cancel_lock")
    /\ Local("operator", [my["operator"] EXCEPT
                          !.snap = See("operator", Tables[my["operator"].table])])
    /\ UNCHANGED << rows, seq, left, history >>

\* Waits while another session holds the row.  Found in no table: begin again (R18).
Cancel_Lock ==
    /\ at["operator"] = "cancel_lock"
    /\ LET o == my["operator"]
       IN  IF Now(o.snap) = {} THEN
               /\ Go("operator", "cancel_see")
               /\ Local("operator", [o EXCEPT !.snap = {}, !.table = (o.table % 4) + 1])
               /\ UNCHANGED rows
           ELSE \E r \in Free(o.snap, "operator") :
               IF r.in = "finished" THEN
                   Stop("operator") /\ UNCHANGED rows
               ELSE
                   /\ Replace(r, Ended(r, "cancel"), "operator")
                   /\ Go("operator", "open") /\ UNCHANGED my
    /\ UNCHANGED << seq, left, history >>

-----------------------------------------------------------------------------
Commit(s) ==
    /\ at[s] = "open"
    /\ rows' = { IF my[s].verb = "beat" /\ r.in = "lease" /\ r.lease = my[s].lease
                 THEN [r EXCEPT !.lapsed = FALSE] ELSE r
                 : r \in AfterCommit(rows, s) }
    /\ history' = IF my[s].verb # "claim" THEN history ELSE
           [history EXCEPT
               !.issued = @ \cup {my[s].lease},
               !.attempt_repeated = @ \/ my[s].attempt \in history.attempts,
               !.attempts = @ \cup {my[s].attempt}]
    /\ Stop(s)
    /\ UNCHANGED << seq, left >>

Rollback(s) ==
    /\ at[s] = "open" /\ left.rollbacks > 0
    /\ rows' = AfterRollback(rows, s)
    /\ left' = [left EXCEPT !.rollbacks = @ - 1]
    /\ Stop(s)
    /\ UNCHANGED << seq, history >>

\* A transaction that has begun goes on.
Step(s) ==
    \/ Claim_Lock(s) \/ Claim_Take(s) \/ Report_End(s) \/ Report_Repeat(s)
    \/ Beat_Lock(s) \/ Commit(s)
    \/ s = "tick" /\ (Reap_Lock \/ Promote_Lock)
    \/ s = "operator" /\ (Cancel_See \/ Cancel_Lock)

Next ==
    \/ \E s \in Workers :
        \/ Claim_See(s)
        \/ \E lease \in history.issued :
            \/ Beat_See(s, lease)
            \/ \E verb \in {"complete", "fail", "release"} : Report_See(s, verb, lease)
    \/ Reap_See \/ Promote_See \/ Cancel_Begin \/ Lapse
    \/ \E s \in Sessions : Step(s) \/ Rollback(s)

\* Time passes, tick runs, workers claim; a worker need not report.
Fairness ==
    /\ \A s \in Sessions : WF_vars(Step(s))
    /\ WF_vars(Reap_See) /\ WF_vars(Promote_See) /\ WF_vars(Lapse)
    /\ \A s \in Workers : WF_vars(Claim_See(s))

Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* G1, G2: after every commit the job has one state, so at most one live lease.
JobHasOneState == Cardinality(Committed(rows)) = 1

\* G3: a report ends the run of its own lease, or nothing.
LostLeaseChangesNothing == ~history.other_run_ended

\* G16, R12: a report that is repeated while the job stands where it brought it is ok.
RepeatedReportSucceeds == ~history.repeat_refused

\* R8: only a lease that has lapsed is reaped.
ReapTakesLapsedLeases == ~history.reaped_alive

AttemptsNeverRepeat == ~history.attempt_repeated

\* G6.
FailuresAreBounded == \A r \in rows : r.failures <= MaxAttempts

\* G4.
EveryJobEnds == <>(\E r \in Committed(rows) : r.in = "finished")
=============================================================================

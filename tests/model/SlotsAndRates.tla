--------------------------- MODULE SlotsAndRates ---------------------------
(***************************************************************************
The claims of one lane with max_slots and a rate (R13, R32, G9, G24).

Sessions claim one job at a time.  A session may complete a job that runs
before it claims, in the same transaction, as pulse.exchange does.  Every
transaction may be rolled back.  roster and quota are tables of versions: a
claim reads the newest version that it sees and writes the next one.

Time is the age of what happened, counted in ticks up to the end of interest:
a start counts against the rate while its age is less than Per.

  action       statement
  End          report/complete.sql: DELETE lease (it writes no roster)
  Turn_Wait    claim/claim.sql step 4b: take_turn in settings/set_lane.sql
  Turn         pg_advisory_xact_lock was granted; Turn_Refused: lock_timeout
  Rate_Read    claim/rates.sql current_quota and free_starts
  Roster_Read  claim/slots.sql take_slots: SELECT the newest roster
  Look_Up      claim/slots.sql take_slots: SELECT lease WHERE lease = ANY (roster)
  Take         claim/claim.sql step 6: INSERT lease and roster, dated v_now
  Spend        claim/claim.sql step 7: DELETE the old roster, spend_quota
***************************************************************************)
EXTENDS ReadCommitted, Integers, FiniteSets

CONSTANTS
    Without,    \* the rule that is left out, or "nothing"
    Sessions,
    Jobs,       \* jobs in the lane
    MaxSlots,   \* max_slots of the lane
    Rate, Per,  \* rate and rate_per of the lane
    Rollbacks   \* transactions that are rolled back

VARIABLES
    leases, rosters, quotas,  \* the tables
    seq,                      \* lease_seq
    version,                  \* pulse_internal.version: numbers roster and quota
    locker,                   \* the session that has the roster lock, or "none"
    at, my,                   \* where a session is, and its local variables
    rollbacks,                \* those that remain
    starts                    \* committed starts; only the invariants read it

vars == << leases, rosters, quotas, seq, version, locker, at, my, rollbacks, starts >>

Idle == [ended |-> 0, lease |-> 0, age |-> 0, since |-> 0, roster |-> {}, old |-> 0,
         quota |-> {}, snap |-> {}]

Init ==
    /\ leases = {}
    /\ rosters = { New([version |-> 0, has |-> {}], "none") }
    /\ quotas = { New([version |-> 0, has |-> {}], "none") }
    /\ seq = 0 /\ version = 0 /\ locker = "none"
    /\ at = [s \in Sessions |-> "idle"]
    /\ my = [s \in Sessions |-> Idle]
    /\ rollbacks = Rollbacks
    /\ starts = {}

Go(s, to) == at' = [at EXCEPT ![s] = to]
Newest(rows) == CHOOSE r \in rows : \A q \in rows : r.version >= q.version
Locked(s) == locker = s \/ Without = "the lock"

\* What a statement reads: without the rule, what the statement that waited for the
\* lock has seen when it began.
Reads(table, s) ==
    IF Without = "look in a later statement" THEN my[s].snap[table]
    ELSE Visible(CASE table = "lease" -> leases [] table = "roster" -> rosters
                   [] OTHER -> quotas, s)

-----------------------------------------------------------------------------
End(s) ==
    /\ at[s] = "idle"
    /\ \E r \in Visible(leases, s) :
        /\ IsFree(r, s)
        /\ leases' = Delete(leases, r, s)
        /\ my' = [my EXCEPT ![s] = [Idle EXCEPT !.ended = r.lease]]
    /\ Go(s, "ended")
    /\ UNCHANGED << rosters, quotas, seq, version, locker, rollbacks, starts >>

\* The transaction ends without a claim, or goes on with one.
Turn_Wait(s) ==
    /\ at[s] \in {"idle", "ended"}
    /\ Cardinality(starts) < Jobs
    /\ Go(s, "turn")
    /\ my' = IF Without = "look in a later statement"
             THEN [my EXCEPT ![s].snap = [lease |-> Visible(leases, s),
                      roster |-> Visible(rosters, s), quota |-> Visible(quotas, s)]]
             ELSE my
    /\ UNCHANGED << leases, rosters, quotas, seq, version, locker, rollbacks, starts >>

Turn(s) ==
    /\ at[s] = "turn"
    /\ IF Without = "the lock" THEN UNCHANGED locker ELSE locker = "none" /\ locker' = s
    /\ Go(s, "rate_read")
    /\ UNCHANGED << leases, rosters, quotas, seq, version, my, rollbacks, starts >>

Turn_Refused(s) ==
    /\ at[s] = "turn" /\ locker # "none"
    /\ Go(s, "open")
    /\ UNCHANGED << leases, rosters, quotas, seq, version, locker, my, rollbacks, starts >>

Rate_Read(s) ==
    /\ at[s] = "rate_read"
    /\ LET quota == Newest(Reads("quota", s)).has
           free == Rate - Cardinality({ q \in quota : q.age < Per })
       IN  /\ my' = [my EXCEPT ![s].quota = quota]
           /\ Go(s, IF free > 0 THEN "roster_read" ELSE "open")
    /\ UNCHANGED << leases, rosters, quotas, seq, version, locker, rollbacks, starts >>

Roster_Read(s) ==
    /\ at[s] = "roster_read"
    /\ LET roster == Newest(Reads("roster", s))
       IN  /\ my' = [my EXCEPT ![s].roster = roster.has, ![s].old = roster.version]
           /\ Go(s, CASE Cardinality(roster.has) < MaxSlots -> "take"
                      [] Without = "a full roster is looked up" -> "open"
                      [] OTHER -> "look_up")
    /\ UNCHANGED << leases, rosters, quotas, seq, version, locker, rollbacks, starts >>

Look_Up(s) ==
    /\ at[s] = "look_up"
    /\ LET there == { r.lease : r \in Reads("lease", s) }
           roster == my[s].roster \cap there
       IN  /\ my' = [my EXCEPT ![s].roster = roster]
           /\ Go(s, IF Cardinality(roster) < MaxSlots THEN "take" ELSE "open")
    /\ UNCHANGED << leases, rosters, quotas, seq, version, locker, rollbacks, starts >>

Take(s) ==
    /\ at[s] = "take"
    /\ seq' = seq + 1
    /\ version' = version + 1
    /\ my' = [my EXCEPT ![s].lease = seq + 1, ![s].age = 0]
    /\ LET roster == [version |-> version + 1, has |-> my[s].roster \cup {seq + 1}]
       IN  IF Without = "roster and lease commit together" THEN
               /\ rosters' = { New(roster, "none") }
               /\ locker' = "none"
               /\ leases' = leases
               /\ Go(s, "lease")
           ELSE
               /\ rosters' = rosters \cup { New(roster, s) }
               /\ leases' = leases \cup { New([lease |-> seq + 1], s) }
               /\ Go(s, "spend")
               /\ UNCHANGED locker
    /\ UNCHANGED << quotas, rollbacks, starts >>

\* Only without the rule: the roster was committed, the lease comes after it.
Take_Late(s) ==
    /\ at[s] = "lease"
    /\ leases' = leases \cup { New([lease |-> my[s].lease], s) }
    /\ Go(s, "spend")
    /\ UNCHANGED << rosters, quotas, seq, version, locker, my, rollbacks, starts >>

Spend(s) ==
    /\ at[s] = "spend"
    /\ version' = version + 1
    /\ rosters' = { IF r.version = my[s].old /\ IsFree(r, s)
                    THEN [r EXCEPT !.held = s, !.gone = TRUE] ELSE r : r \in rosters }
    /\ LET start == [lease |-> my[s].lease, age |-> my[s].age]
           quota == { q \in my[s].quota : q.age < Per } \cup {start}
       IN  quotas' = { IF r.by = "none" /\ r.held = "none"
                       THEN [r EXCEPT !.held = s, !.gone = TRUE] ELSE r : r \in quotas }
                     \cup { New([version |-> version + 1, has |-> quota], s) }
    /\ Go(s, "open")
    /\ UNCHANGED << leases, seq, locker, my, rollbacks, starts >>

-----------------------------------------------------------------------------
Stop(s) ==
    /\ Go(s, "idle")
    /\ my' = [my EXCEPT ![s] = Idle]
    /\ locker' = IF locker = s THEN "none" ELSE locker

Commit(s) ==
    /\ at[s] \in {"ended", "open"}
    /\ leases' = AfterCommit(leases, s)
    /\ rosters' = AfterCommit(rosters, s)
    /\ quotas' = AfterCommit(quotas, s)
    /\ starts' = IF my[s].lease = 0 THEN starts
                 ELSE starts \cup {[lease |-> my[s].lease, age |-> my[s].age]}
    /\ Stop(s)
    /\ UNCHANGED << seq, version, rollbacks >>

Rollback(s) ==
    /\ at[s] = "open" /\ rollbacks > 0
    /\ leases' = AfterRollback(leases, s)
    /\ rosters' = AfterRollback(rosters, s)
    /\ quotas' = AfterRollback(quotas, s)
    /\ rollbacks' = rollbacks - 1
    /\ Stop(s)
    /\ UNCHANGED << seq, version, starts >>

\* A start is of no interest when no start that is still to be committed can be in
\* one window with it.
Forget == 3 * Per
Older(set) == { [x EXCEPT !.age = IF @ < Forget THEN @ + 1 ELSE @] : x \in set }

Tick ==
    /\ \A s \in Sessions : my[s].lease # 0 => my[s].age < Per
    /\ \E s \in Sessions : at[s] # "idle" \/ Cardinality(starts) < Jobs
    /\ quotas' = { [r EXCEPT !.has = Older(@)] : r \in quotas }
    /\ starts' = Older(starts)
    /\ my' = [s \in Sessions |-> [my[s] EXCEPT
                 !.age = IF my[s].lease = 0 THEN 0 ELSE @ + 1,
                 !.quota = Older(@)]]
    /\ UNCHANGED << leases, rosters, seq, version, locker, at, rollbacks >>

Step(s) ==
    \/ Turn(s) \/ Turn_Refused(s) \/ Rate_Read(s) \/ Roster_Read(s) \/ Look_Up(s)
    \/ Take(s) \/ Take_Late(s) \/ Spend(s) \/ Commit(s)

Next ==
    \/ \E s \in Sessions : End(s) \/ Turn_Wait(s) \/ Step(s) \/ Rollback(s)
    \/ Tick

Fairness ==
    /\ \A s \in Sessions : WF_vars(Step(s)) /\ SF_vars(End(s)) /\ SF_vars(Turn_Wait(s))
    /\ WF_vars(Tick)

Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* G9: a job runs while its lease is committed.
SlotsHold == Cardinality(Committed(leases)) <= MaxSlots

\* G24: no window of Per has more than Rate starts.
RateHolds ==
    \A s \in starts :
        Cardinality({ t \in starts : t.age >= s.age /\ t.age < s.age + Per
                                     /\ t.age < Forget }) <= Rate

\* A roster that is too long delays a claim and does not stop the lane.
EveryJobStarts == <>(Cardinality(starts) = Jobs)
=============================================================================

------------------------- MODULE BlockedAndUnblock -------------------------
(***************************************************************************
A job that waits for two others, and the ends of these (R29, R30, G20).

A producer enqueues one job after "A" and "B", which run.  Each of them is
completed by a session of its own.  tick settles doubts and takes portions.
Every transaction may be rolled back: an enqueue and a report are then tried
again.  The producer may go on in its transaction, as pulse.exchange does when
it claims after an enqueue, and settle doubts there.  An operator begins to
cancel the blocked job and rolls back, so that the row is held for a while.

Here a doubt that was committed is found; LowWaterMarks proves it of the mark
from which the search begins.  An upstream is a row of lease, then of
finished.  touched is xmax of the row of lease: it stays after a rollback.

  action        statement
  Put_After     flows/after.sql put_after: SELECT finished ... SKIP LOCKED
  Block         put_after: INSERT blocked, INSERT doubt
  End           report/complete.sql: DELETE lease, INSERT finished
  Look_See      flows/release.sql look: SELECT blocked ... FOR UPDATE SKIP LOCKED
  Look_Lock     the same statement locks the row
  Look_Count    look: is there one that another session holds?  wake: INSERT wake
  Judge         look: next upstream that is not in finished; flows/unblock.sql
                release, or UPDATE blocked and INSERT doubt
  Settle_Begin  flows/maintenance.sql tick_flows: pg_snapshot_xmin >= unsure_until
  Settle_Read   flows/settle.sql settle: SELECT doubt, finished, xmax
  Settle_Take   settle: SELECT doubt FOR UPDATE SKIP LOCKED, DELETE doubt
  Portion       flows/settle.sql take_portions: DELETE wake
  Hold          common/move_job.sql take_out: SELECT blocked FOR UPDATE
***************************************************************************)
EXTENDS ReadCommitted, Integers, FiniteSets

CONSTANTS
    Without,    \* the rule that is left out, or "nothing"
    Ticks,      \* sessions that call tick
    Rollbacks   \* transactions that are rolled back

VARIABLES
    leases, finished, blocked, ready, doubts, wakes,   \* the tables
    seq,        \* note_seq
    unsure,     \* note_mark: doubts that could not be settled, and the sessions
                \* whose transactions of that time have not ended (unsure_until)
    at, my, rollbacks

vars == << leases, finished, blocked, ready, doubts, wakes, seq, unsure, at, my,
           rollbacks >>
tables == << leases, finished, blocked, ready, doubts, wakes >>

Upstreams == {"A", "B"}
\* The end of A is session "A".
Sessions == {"producer", "operator"} \cup Upstreams \cup Ticks
Nothing == [doubts |-> {}, open |-> {}]
Idle == [ended |-> {}, job |-> "none", snap |-> {}, locked |-> FALSE, decided |-> {},
         sure |-> {}, well |-> {}, unsure |-> {}]

Init ==
    /\ leases = { New([job |-> u, touched |-> FALSE], "none") : u \in Upstreams }
    /\ finished = {} /\ blocked = {} /\ ready = {} /\ doubts = {} /\ wakes = {}
    /\ seq = 0 /\ unsure = Nothing
    /\ at = [s \in Sessions |-> "idle"]
    /\ my = [s \in Sessions |-> Idle]
    /\ rollbacks = Rollbacks

Go(s, to) == at' = [at EXCEPT ![s] = to]
Local(s, new) == my' = [my EXCEPT ![s] = new]
Jobs(rows) == { r.job : r \in rows }
Later(jobs) == IF "B" \in jobs THEN "B" ELSE "A"     \* max(job)
Doubt(job, s) == New([seq |-> seq + 1, job |-> job], s)

-----------------------------------------------------------------------------
Put_After ==
    /\ at["producer"] = "idle"
    /\ blocked = {} /\ ready = {}
    /\ Local("producer", [Idle EXCEPT !.ended = Jobs(Visible(finished, "producer"))])
    /\ Go("producer", "block")
    /\ UNCHANGED << tables, seq, unsure, rollbacks >>

Block ==
    /\ at["producer"] = "block"
    /\ LET missing == Upstreams \ my["producer"].ended
       IN  IF missing = {} THEN
               /\ ready' = { New([released_by |-> "producer"], "producer") }
               /\ UNCHANGED << blocked, doubts, seq >>
           ELSE
               /\ blocked' = { New([waits_for |-> Later(missing)], "producer") }
               /\ IF Without = "an enqueue doubts" THEN UNCHANGED << doubts, seq >>
                  ELSE doubts' = doubts \cup { Doubt(Later(missing), "producer") }
                       /\ seq' = seq + 1
               /\ UNCHANGED ready
    /\ Local("producer", Idle)
    /\ Go("producer", "blocked")
    /\ UNCHANGED << leases, finished, wakes, unsure, rollbacks >>

-----------------------------------------------------------------------------
End(u) ==
    /\ at[u] = "idle"
    /\ \E r \in leases :
        /\ r.job = u
        /\ leases' = Delete(leases \ {r}, [r EXCEPT !.touched = TRUE], u)
    /\ finished' = finished \cup { New([job |-> u], u) }
    /\ Local(u, [Idle EXCEPT !.job = u])
    /\ Go(u, "look_see")
    /\ UNCHANGED << blocked, ready, doubts, wakes, seq, unsure, rollbacks >>

\* The look of session s for the job that waits for my[s].job.
Watching(s) == { r \in Visible(blocked, s) : r.waits_for = my[s].job }

Look_See(s) ==
    /\ at[s] = "look_see"
    /\ Local(s, [my[s] EXCEPT !.snap = { r.waits_for : r \in Watching(s) }])
    /\ Go(s, IF Watching(s) = {} THEN "open" ELSE "look_lock")
    /\ UNCHANGED << tables, seq, unsure, rollbacks >>

Look_Lock(s) ==
    /\ at[s] = "look_lock"
    /\ LET free == { r \in blocked : r.waits_for \in my[s].snap /\ IsFree(r, s)
                                     /\ ~r.gone }
       IN  IF free = {} THEN
               Go(s, "look_count") /\ UNCHANGED blocked
           ELSE \E r \in free :
               blocked' = Lock(blocked, r, s) /\ Go(s, "judge")
    /\ Local(s, [my[s] EXCEPT !.snap = {}])
    /\ UNCHANGED << leases, finished, ready, doubts, wakes, seq, unsure, rollbacks >>

Look_Count(s) ==
    /\ at[s] = "look_count"
    /\ wakes' = IF Watching(s) = {} \/ Without = "what is held is noted" THEN wakes
                ELSE wakes \cup { New([job |-> my[s].job], s) }
    /\ Go(s, "open")
    /\ UNCHANGED << leases, finished, blocked, ready, doubts, seq, unsure, my, rollbacks >>

Judge(s) ==
    /\ at[s] = "judge"
    /\ \E r \in blocked :
        /\ r.held = s
        /\ LET missing == IF Without = "all upstreams are judged" THEN {}
                          ELSE Upstreams \ Jobs(Visible(finished, s))
           IN  IF missing = {} THEN
                   /\ blocked' = Delete(blocked, r, s)
                   /\ ready' = ready \cup { New([released_by |-> s], s) }
                   /\ UNCHANGED << doubts, seq >>
               ELSE
                   /\ blocked' = Delete(blocked, r, s)
                                 \cup { New([waits_for |-> Later(missing)], s) }
                   /\ IF Without = "a move doubts" THEN UNCHANGED << doubts, seq >>
                      ELSE doubts' = doubts \cup { Doubt(Later(missing), s) }
                           /\ seq' = seq + 1
                   /\ UNCHANGED ready
    /\ Go(s, "open")
    /\ UNCHANGED << leases, finished, wakes, unsure, my, rollbacks >>

-----------------------------------------------------------------------------
\* Decided: every transaction that was open when they were unsure has ended.
Settle_Begin(s) ==
    /\ \/ s \in Ticks /\ at[s] = "idle" /\ Committed(doubts) # {}
       \/ s = "producer" /\ at[s] = "blocked"
    /\ Local(s, [Idle EXCEPT !.decided =
           IF s \in Ticks /\ unsure.open = {} THEN unsure.doubts ELSE {}])
    /\ Go(s, "settle_read")
    /\ UNCHANGED << tables, seq, unsure, rollbacks >>

Settle_Read(s) ==
    /\ at[s] = "settle_read"
    /\ LET notes == IF Without = "own doubts stay" THEN Visible(doubts, s)
                    ELSE Visible(Committed(doubts), s)
           well == { d \in notes : d.job \in Jobs(Visible(finished, s)) }
           sure == { d \in notes \ well :
                     \/ \E r \in leases : r.job = d.job /\ ~r.touched
                     \/ d.seq \in my[s].decided
                     \/ Without = "a doubt waits for open ends" }
           seqs(set) == { d.seq : d \in set }
       IN  Local(s, [my[s] EXCEPT !.well = seqs(well), !.sure = seqs(sure),
                                  !.unsure = seqs(notes \ (well \cup sure))])
    /\ Go(s, "settle_take")
    /\ UNCHANGED << tables, seq, unsure, rollbacks >>

Settle_Take(s) ==
    /\ at[s] = "settle_take"
    /\ LET take == { d \in doubts : d.seq \in my[s].well \cup my[s].sure
                                    /\ IsFree(d, s) }
           well == { d.job : d \in { o \in take : o.seq \in my[s].well } }
       IN  /\ doubts' = { IF d \in take THEN [d EXCEPT !.held = s, !.gone = TRUE]
                          ELSE d : d \in doubts }
           /\ IF well = {} THEN Go(s, "open") /\ Local(s, my[s])
              ELSE \E job \in well :
                  \* The job watches one of them: a look for the other finds nothing.
                  /\ (\E b \in blocked : b.waits_for \in well) =>
                         \E b \in blocked : b.waits_for = job
                  /\ Local(s, [my[s] EXCEPT !.job = job])
                  /\ Go(s, "look_see")
    /\ UNCHANGED << leases, finished, blocked, ready, wakes, seq, unsure, rollbacks >>

Portion(s) ==
    /\ s \in Ticks /\ at[s] = "idle" /\ Without # "portions are taken"
    /\ \E w \in wakes :
        /\ w.by = "none" /\ w.held = "none"
        /\ wakes' = Delete(wakes, w, s)
        /\ Local(s, [Idle EXCEPT !.job = w.job])
    /\ Go(s, "look_see")
    /\ UNCHANGED << leases, finished, blocked, ready, doubts, seq, unsure, rollbacks >>

Hold ==
    /\ at["operator"] = "idle" /\ rollbacks > 0
    /\ \E r \in Committed(blocked) :
        /\ IsFree(r, "operator")
        /\ blocked' = Lock(blocked, r, "operator")
    /\ rollbacks' = rollbacks - 1
    /\ Go("operator", "held")
    /\ UNCHANGED << leases, finished, ready, doubts, wakes, seq, unsure, my >>

-----------------------------------------------------------------------------
\* tick remembers what it was not sure of, with the transactions that are open now.
Remember(s) ==
    LET still == [unsure EXCEPT !.open = @ \ {s}]
    IN  IF s \in Ticks /\ (my[s].decided # {} \/ unsure.doubts = {})
        THEN [doubts |-> my[s].unsure,
              open |-> IF my[s].unsure = {} THEN {}
                       ELSE { o \in Sessions \ {s} : at[o] # "idle" }]
        ELSE still

Ends(s, after(_, _)) ==
    /\ at[s] \in {"blocked", "open", "held"}
    /\ leases' = after(leases, s)
    /\ finished' = after(finished, s)
    /\ blocked' = after(blocked, s)
    /\ ready' = after(ready, s)
    /\ doubts' = after(doubts, s)
    /\ wakes' = after(wakes, s)
    /\ Go(s, "idle") /\ Local(s, Idle)
    /\ UNCHANGED seq

\* The operator has changed nothing: for others its rollback is as a commit.
Commit(s) ==
    /\ Ends(s, AfterCommit)
    /\ unsure' = Remember(s)
    /\ UNCHANGED rollbacks

Rollback(s) ==
    /\ rollbacks > 0 /\ s # "operator"
    /\ Ends(s, AfterRollback)
    /\ unsure' = [unsure EXCEPT !.open = @ \ {s}]
    /\ rollbacks' = rollbacks - 1

Step(s) ==
    \/ s = "producer" /\ Block
    \/ Look_See(s) \/ Look_Lock(s) \/ Look_Count(s) \/ Judge(s)
    \/ Settle_Read(s) \/ Settle_Take(s) \/ Commit(s)

Next ==
    \/ Put_After \/ Hold
    \/ \E u \in Upstreams : End(u)
    \/ \E s \in Sessions : Settle_Begin(s) \/ Portion(s) \/ Step(s) \/ Rollback(s)

\* Transactions end, the upstreams are completed, tick runs.
Fairness ==
    /\ WF_vars(Put_After)
    /\ \A u \in Upstreams : WF_vars(End(u))
    /\ \A s \in Sessions : WF_vars(Step(s))
    /\ \A t \in Ticks : SF_vars(Settle_Begin(t)) /\ SF_vars(Portion(t))

Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
ReleasedOnce ==
    Cardinality(Committed(ready)) + Cardinality(Committed(blocked)) <= 1

NeverReleasedEarly ==
    Committed(ready) # {} => Jobs(Committed(finished)) = Upstreams

\* While no transaction is open, a note names each job whose upstream has ended.
NoJobIsForgotten ==
    (\A s \in Sessions : at[s] = "idle") =>
        \A b \in blocked : b.waits_for \in Jobs(finished) =>
            b.waits_for \in Jobs(doubts) \cup Jobs(wakes)

EveryJobIsReleased == <>[](ready # {} /\ Committed(ready) = ready)
=============================================================================

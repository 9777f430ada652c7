--------------------------- MODULE LowWaterMarks ---------------------------
(***************************************************************************
One low-water mark, as every mark of pulse moves (R2, R3, R4).

Producers announce their lane and insert a row whose number comes from a
sequence; a claim deletes the first row at or above the mark; ticks move the
mark.  Every transaction of a producer or of the claim may be rolled back, and
one of a producer may be prepared: then pg_locks no longer shows it by the name
that was remembered.  The mark must never pass a row that is or may become live.

  action        statement
  Announce      common/horizon.sql enter_lane: the shared lock of the lane
  Draw          enqueue/enqueue.sql INSERT INTO ready: DEFAULT nextval('ready_seq')
  Claim         claim/claim.sql: DELETE ready, the first row from the mark on
  See_Old       common/horizon.sql see_horizon: SELECT the newest horizon
  See_Number    see_horizon: last_drawn_ready()
  See_Holders   see_horizon: SELECT ... FROM pg_locks
  Decide        see_horizon: the floors, INSERT INTO horizon; decided_in_lane
  Look          common/marks.sql advance_line: first_live, INSERT INTO mark
***************************************************************************)
EXTENDS ReadCommitted, Integers, FiniteSets

CONSTANTS
    Without,     \* the rule that is left out, or "nothing"
    Producers,
    Ticks,
    Rows         \* rows that are inserted in all, rolled back or not

VARIABLES
    ready,       \* rows of ready: their seq is the column seq
    seq,         \* ready_seq
    horizons,    \* rows of horizon: number is next_ready_q, and writers
    marks,       \* rows of mark: seq is the mark
    locks,       \* transactions that have announced the lane, and prepared ones
    at, my

vars == << ready, seq, horizons, marks, locks, at, my >>

Sessions == Producers \cup Ticks \cup {"claim"}
None == [number |-> 0, writers |-> {}]
Idle == [tx |-> 0, seq |-> 0, old |-> None, number |-> 0, holders |-> {},
         prepared |-> {}, decided |-> 0, snap |-> {}]

Init ==
    /\ ready = {} /\ seq = 0
    /\ horizons = { New([version |-> 0, is |-> None], "none") }
    /\ marks = { New([version |-> 0, is |-> 0], "none") }
    /\ locks = [holders |-> {}, prepared |-> {}]
    /\ at = [s \in Sessions |-> "idle"]
    /\ my = [s \in Sessions |-> Idle]

Go(s, to) == at' = [at EXCEPT ![s] = to]
Min(set) == CHOOSE n \in set : \A o \in set : n <= o
Max(set) == CHOOSE n \in set : \A o \in set : n >= o

\* Tables of versions.  Only the order of the versions counts, so they are numbered
\* anew: the newest committed row and those of open transactions remain.
Newest(rows) == CHOOSE r \in rows : \A o \in rows : r.version >= o.version
Append(rows, new, s) == rows \cup {New([version |-> Cardinality(rows), is |-> new], s)}
Tidy(rows) ==
    LET kept == { r \in rows : r.by # "none" \/ r = Newest(Committed(rows)) }
    IN  { [r EXCEPT !.version = Cardinality({ o \in kept : o.version < r.version })]
          : r \in kept }
Mark == Newest(Committed(marks)).is

-----------------------------------------------------------------------------
NumberFirst == Without = "the lock before the number"

\* A transaction has a name that is never used again: session and number.
Announce(s) ==
    /\ IF NumberFirst THEN at[s] = "drawn" ELSE at[s] = "idle" /\ seq < Rows
    /\ locks' = [locks EXCEPT !.holders = @ \cup {<< s, my[s].tx >>}]
    /\ Go(s, IF NumberFirst THEN "insert" ELSE "locked")
    /\ UNCHANGED << ready, seq, horizons, marks, my >>

Draw(s) ==
    /\ at[s] = (IF NumberFirst THEN "idle" ELSE "locked")
    /\ seq < Rows
    /\ seq' = seq + 1
    /\ my' = [my EXCEPT ![s].seq = seq + 1]
    /\ Go(s, IF NumberFirst THEN "drawn" ELSE "insert")
    /\ UNCHANGED << ready, horizons, marks, locks >>

Insert(s) ==
    /\ at[s] = "insert"
    /\ ready' = ready \cup { New([seq |-> my[s].seq], s) }
    /\ Go(s, "open")
    /\ UNCHANGED << seq, horizons, marks, locks, my >>

Prepare(s) ==
    /\ at[s] = "open"
    /\ locks' = [holders |-> locks.holders \ {<< s, my[s].tx >>},
                 prepared |-> locks.prepared \cup {s}]
    /\ Go(s, "prepared")
    /\ UNCHANGED << ready, seq, horizons, marks, my >>

\* Commits or rolls back, prepared or not; or nothing was left to insert.
Finish(s) ==
    /\ \/ at[s] \in {"open", "prepared"}
       \/ at[s] = "locked" /\ seq = Rows
    /\ ready' \in { AfterCommit(ready, s), AfterRollback(ready, s) }
    /\ locks' = [holders |-> locks.holders \ {<< s, my[s].tx >>},
                 prepared |-> locks.prepared \ {s}]
    /\ my' = [my EXCEPT ![s] = [Idle EXCEPT !.tx = my[s].tx + 1]]
    /\ Go(s, "idle")
    /\ UNCHANGED << seq, horizons, marks >>

Claim ==
    /\ at["claim"] = "idle"
    /\ \E r \in Committed(ready) :
        /\ r.seq = Min({ o.seq : o \in { q \in Committed(ready) : q.seq >= Mark } })
        /\ ready' = Delete(ready, r, "claim")
    /\ Go("claim", "open")
    /\ UNCHANGED << seq, horizons, marks, locks, my >>

Claim_Ends(after) ==
    /\ at["claim"] = "open"
    /\ ready' = after
    /\ Go("claim", "idle")
    /\ UNCHANGED << seq, horizons, marks, locks, my >>
Claim_Commit == Claim_Ends(AfterCommit(ready, "claim"))
Claim_Rollback == Claim_Ends(AfterRollback(ready, "claim"))

-----------------------------------------------------------------------------
HoldersFirst == Without = "the number before the holders"

See_Old(t) ==
    /\ at[t] = "idle"
    /\ my' = [my EXCEPT ![t].old = Newest(Committed(horizons)).is,
                        ![t].snap = IF Without = "two statements"
                                    THEN { r.seq : r \in Committed(ready) } ELSE {}]
    /\ Go(t, IF HoldersFirst THEN "see_holders" ELSE "see_number")
    /\ UNCHANGED << ready, seq, horizons, marks, locks >>

See_Number(t) ==
    /\ at[t] = "see_number"
    /\ my' = [my EXCEPT ![t].number = seq]
    /\ Go(t, IF HoldersFirst THEN "decide" ELSE "see_holders")
    /\ UNCHANGED << ready, seq, horizons, marks, locks >>

See_Holders(t) ==
    /\ at[t] = "see_holders"
    /\ my' = [my EXCEPT ![t].holders = locks.holders,
                        ![t].prepared = locks.prepared]
    /\ Go(t, IF HoldersFirst THEN "see_number" ELSE "decide")
    /\ UNCHANGED << ready, seq, horizons, marks, locks >>

Decide(t) ==
    /\ at[t] = "decide"
    /\ LET old == my[t].old
           first == IF Without = "a new holder has the number of the look before"
                    THEN my[t].number ELSE old.number
           met(h) == IF Without = "a holder keeps its floor" THEN {}
                     ELSE { w.floor : w \in { o \in old.writers : o.name = h } }
           lowest == IF Without = "a prepared holder has the lowest floor" THEN {}
                     ELSE { w.floor : w \in old.writers }
           writers == { [name |-> h, floor |-> Min(met(h) \cup {first})]
                        : h \in my[t].holders }
                      \cup { [name |-> << s, -1 >>, floor |-> Min(lowest \cup {first})]
                             : s \in my[t].prepared }
           floors == IF Without = "holders hold the mark back" THEN {}
                     ELSE { w.floor : w \in writers }
       IN  /\ horizons' = Append(horizons, [number |-> my[t].number, writers |-> writers], t)
           /\ my' = [my EXCEPT ![t] = [Idle EXCEPT !.decided = Min(floors \cup {my[t].number}),
                                                  !.snap = my[t].snap]]
    /\ Go(t, "look")
    /\ UNCHANGED << ready, seq, marks, locks >>

\* A plain SELECT in a later statement: its snapshot is younger than the decision.
Look(t) ==
    /\ at[t] = "look"
    /\ LET seen == CASE Without = "two statements" -> my[t].snap
                     [] Without = "the look is a plain SELECT" ->
                            { r.seq : r \in { o \in Committed(ready) : o.held = "none" } }
                     [] OTHER -> { r.seq : r \in Committed(ready) }
           live == { n \in seen : n >= Mark }
           first == Min(live \cup {my[t].decided + 1})
       IN  marks' = Append(marks, Max({Mark, first}), t)
    /\ Go(t, "open")
    /\ UNCHANGED << ready, seq, horizons, locks, my >>

Tick_Ends(t, after(_, _)) ==
    /\ at[t] = "open"
    /\ horizons' = Tidy(after(horizons, t))
    /\ marks' = Tidy(after(marks, t))
    /\ my' = [my EXCEPT ![t] = Idle]
    /\ Go(t, "idle")
    /\ UNCHANGED << ready, seq, locks >>
Tick_Commit(t) == Tick_Ends(t, AfterCommit)
Tick_Rollback(t) == Tick_Ends(t, AfterRollback)

-----------------------------------------------------------------------------
Produce(s) == Announce(s) \/ Draw(s) \/ Insert(s) \/ Finish(s)
Tick(t) == See_Old(t) \/ See_Number(t) \/ See_Holders(t) \/ Decide(t) \/ Look(t)

Next ==
    \/ \E s \in Producers : Produce(s) \/ Prepare(s)
    \/ Claim \/ Claim_Commit \/ Claim_Rollback
    \/ \E t \in Ticks : Tick(t) \/ Tick_Commit(t) \/ Tick_Rollback(t)

\* Transactions end, claims and ticks run, and not all of them are rolled back.
Fairness ==
    /\ \A s \in Producers : WF_vars(Produce(s))
    /\ WF_vars(Claim) /\ SF_vars(Claim_Commit)
    /\ \A t \in Ticks : WF_vars(Tick(t)) /\ SF_vars(Tick_Commit(t))

Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
\* Live: committed, or in an open or prepared transaction; deleted by an open claim, too.
MarkNeverPassesALiveRow ==
    \A m \in Committed(marks) : \A r \in ready : r.seq >= m.is

\* So every row is claimed, and the mark passes those that are gone.
MarkPassesWhatIsGone == <>[](ready = {} /\ Mark = Rows + 1)
=============================================================================

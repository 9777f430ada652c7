--------------------------- MODULE ReadCommitted ---------------------------
(***************************************************************************
Rows as transactions see them under READ COMMITTED; all models here use it.

A row is a record with at least these fields:

  by    the open transaction that inserted the row, "none" once it committed
  held  the open transaction that has locked the row, or "none"
  gone  whether the transaction in held has deleted the row

A statement sees what was committed when it began, and what its own
transaction did.  It locks a row in the newest version: a row that was
deleted meanwhile is not there, and the condition is checked again.  So a
statement that locks is two actions of a model: the first takes the snapshot,
the second locks.  A statement that only reads is one action.
***************************************************************************)

New(row, me) == [f \in DOMAIN row \cup {"by", "held", "gone"} |->
    CASE f = "by" -> me [] f = "held" -> "none" [] f = "gone" -> FALSE
      [] OTHER -> row[f]]

Committed(rows) == { r \in rows : r.by = "none" }

\* What a statement of transaction me sees if it begins now.
Visible(rows, me) ==
    { r \in rows : r.by \in {"none", me} /\ ~(r.gone /\ r.held = me) }

\* Whether me can lock the row without waiting.
IsFree(r, me) == r.by \in {"none", me} /\ r.held \in {"none", me}

Lock(rows, r, me) == (rows \ {r}) \cup {[r EXCEPT !.held = me]}

Delete(rows, r, me) == (rows \ {r}) \cup {[r EXCEPT !.held = me, !.gone = TRUE]}

AfterCommit(rows, me) ==
    { [r EXCEPT !.by = IF @ = me THEN "none" ELSE @,
                !.held = IF @ = me THEN "none" ELSE @]
      : r \in { q \in rows : ~(q.gone /\ q.held = me) } }

AfterRollback(rows, me) ==
    { [r EXCEPT !.held = IF @ = me THEN "none" ELSE @,
                !.gone = IF r.held = me THEN FALSE ELSE @]
      : r \in { q \in rows : q.by # me } }
=============================================================================

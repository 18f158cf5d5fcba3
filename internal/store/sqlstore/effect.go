package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
)

// The reasons with which an effect ends by somebody's word or by time, and not by a provider's answer. An effect that
// is unknown with one of them is never sent again: once it is known not to have happened, it ends.
const (
	reasonCancelled   = "cancelled"
	reasonWithdrawn   = "withdrawn"
	reasonPredecessor = "predecessor"
	reasonBudget      = "budget"
	reasonExpired     = "expired"
	reasonAbandoned   = "abandoned"
)

// ending reports whether reason forbids another send.
func ending(reason string) bool {
	switch reason {
	case reasonCancelled, reasonWithdrawn, reasonPredecessor, reasonBudget, reasonExpired:
		return true
	}
	return false
}

// The actors of moves that nobody asked for.
var (
	dispatcher = holdpoint.Who{Kind: "system", ID: "dispatcher"}
	sweeper    = holdpoint.Who{Kind: "system", ID: "sweeper"}
)

// runRef names a run.
type runRef struct{ tenant, id string }

// lockRuns locks the rows of several runs in the order of claims, so that two batches cannot deadlock, and reads them
// with the transaction's clock. A run that does not exist is missing from the answer.
func (t *tx) lockRuns(ctx context.Context, refs []runRef) (map[runRef]*holdpoint.Run, time.Time, error) {
	slices.SortFunc(refs, func(a, b runRef) int {
		return cmp.Or(strings.Compare(a.tenant, b.tenant), strings.Compare(a.id, b.id))
	})
	refs = slices.Compact(refs)
	if len(refs) == 0 {
		now, err := t.now(ctx)
		return nil, now, err
	}
	args := make([]any, 0, 2*len(refs))
	for _, r := range refs {
		args = append(args, r.tenant, r.id)
	}
	rows, err := t.QueryContext(ctx, t.s.expand("SELECT "+runColumns+" FROM runs WHERE (tenant, id) IN (VALUES "+tuples(len(refs), 2, 1)+
		") ORDER BY tenant, scope, key_hmac {{for_update}}"), args...)
	all, err := collect(rows, err, func(row scanner) (holdpoint.Run, error) { return scanRun(row) })
	if err != nil {
		return nil, time.Time{}, err
	}
	locked := make(map[runRef]*holdpoint.Run, len(all))
	for i := range all {
		locked[runRef{all[i].Tenant, all[i].ID}] = &all[i]
	}
	now, err := t.now(ctx)
	return locked, now, err
}

// mover moves effects of locked runs inside one transaction and keeps the evidence until flush writes it.
type mover struct {
	*tx
	now    time.Time
	who    holdpoint.Who
	events []event
}

// note adds one line of evidence.
func (m *mover) note(kind, tenant, run string, data map[string]any, content []byte) {
	m.events = append(m.events, event{tenant: tenant, run: run, kind: kind, who: m.who, data: data, content: content})
}

// flush writes the evidence of all moves.
func (m *mover) flush(ctx context.Context) error {
	err := m.record(ctx, m.now, m.events...)
	m.events = nil
	return err
}

// effects reads effects by a condition on their columns.
func (t *tx) effects(ctx context.Context, where string, args ...any) ([]holdpoint.Effect, error) {
	rows, err := t.QueryContext(ctx, "SELECT "+effectColumns+" FROM effects WHERE "+where, args...)
	return collect(rows, err, func(row scanner) (holdpoint.Effect, error) { return scanEffect(row) })
}

// lockEffect locks the run of an effect and reads both; not_found if there is no such effect. The lock of the run is
// enough: whoever moves an effect holds it.
func (t *tx) lockEffect(ctx context.Context, tenant, id string) (run holdpoint.Run, e holdpoint.Effect, now time.Time, err error) {
	found, err := t.effects(ctx, "tenant = $1 AND id = $2", tenant, id)
	if err == nil && len(found) == 0 {
		err = holdpoint.Errorf(holdpoint.CodeNotFound, "there is no effect %s in this tenant; list the effects of its run", id)
	}
	if err != nil {
		return run, e, now, err
	}
	if run, now, err = t.lockRun(ctx, tenant, found[0].RunID); err != nil {
		return run, e, now, err
	}
	// Read again: what was read before the lock may have moved.
	if found, err = t.effects(ctx, "tenant = $1 AND id = $2", tenant, id); err != nil {
		return run, e, now, err
	}
	return run, found[0], now, nil
}

// move makes one transition of an effect whose other fields the caller has already changed, and notes it. It is the
// one place where the table of effects and I3 are enforced: what is possibly committed becomes unknown where it would
// have failed, unless a person abandons it.
func (m *mover) move(ctx context.Context, e *holdpoint.Effect, to holdpoint.EffectState, trigger, kind string, data map[string]any) error {
	from := e.State
	if to == holdpoint.EffectFailed && e.PossiblyCommitted && trigger != "abandon" {
		to = holdpoint.EffectUnknown
		kind = ""
		if e.NextLookupAt == nil {
			e.NextLookupAt = m.lookupAt(*e, 0)
		}
	}
	if !holdpoint.Allowed(holdpoint.EffectTransitions, from, to, trigger) {
		return holdpoint.Errorf(holdpoint.CodeInternal, "an effect cannot go from %s to %s by %s; this is a fault of the program", from, to, trigger)
	}
	if to != holdpoint.EffectPending {
		e.Hold = holdpoint.HoldNone
	}
	if to != holdpoint.EffectUnknown {
		e.NextLookupAt = nil
	}
	if to == holdpoint.EffectCompleted {
		e.PossiblyCommitted, e.FailureClass, e.Reason = false, holdpoint.ClassNone, ""
	}
	if err := m.save(ctx, e, to); err != nil {
		return err
	}
	if kind == "" {
		kind = map[holdpoint.EffectState]string{holdpoint.EffectPending: "effect.retry", holdpoint.EffectCompleted: "effect.completed",
			holdpoint.EffectUnknown: "effect.unknown", holdpoint.EffectFailed: "effect.failed"}[to]
	}
	all := map[string]any{"effect_id": e.ID, "slot": e.Slot, "from": from, "to": to, "trigger": trigger, "version": e.Version,
		"possibly_committed": e.PossiblyCommitted}
	for name, value := range map[string]string{"reason": e.Reason, "hold": string(e.Hold), "failure_class": string(e.FailureClass), "provider_id": e.ProviderID} {
		if value != "" {
			all[name] = value
		}
	}
	maps.Copy(all, data)
	m.note(kind, e.Tenant, e.RunID, all, nil)
	return nil
}

// save writes an effect back in state to. Compare-and-set on state and version closes the race with whoever moved it
// since it was read; that cannot be under the run's lock, so a miss is a fault.
func (m *mover) save(ctx context.Context, e *holdpoint.Effect, to holdpoint.EffectState) error {
	next := m.now
	if e.NextAttemptAt != nil {
		next = *e.NextAttemptAt
	}
	res, err := m.ExecContext(ctx, `UPDATE effects SET state = $5, hold = $6,
 held_at = CASE WHEN $6 = '' THEN NULL WHEN hold = $6 THEN held_at ELSE $7 END,
 unknown_since = CASE WHEN $5 <> 'unknown' THEN NULL WHEN state = 'unknown' THEN unknown_since ELSE $7 END,
 reason = $8, possibly_committed = $9, failure_class = $10, spent = $11, next_attempt_at = $12, provider_id = $13, lookups = $14,
 absent_reads = $15, absent_resends = $16, next_lookup_at = CAST($17 AS BIGINT), lease_owner = '', lease_expires_at = NULL,
 version = version + 1, updated_at = $7
 WHERE tenant = $1 AND id = $2 AND state = $3 AND version = $4`,
		e.Tenant, e.ID, string(e.State), e.Version, string(to), string(e.Hold), m.now.UnixMicro(), e.Reason, bit(e.PossiblyCommitted),
		string(e.FailureClass), e.Spent, next.UnixMicro(), e.ProviderID, e.Lookups, e.AbsentReads, e.AbsentResends, microsPtr(e.NextLookupAt))
	if err := oneRow(res, err, errMoved); err != nil {
		return err
	}
	e.State, e.Version, e.UpdatedAt, e.LeaseOwner, e.LeaseExpiresAt = to, e.Version+1, m.now, "", nil
	return nil
}

// errMoved says that a row changed under a lock that should have prevented it.
var errMoved = errors.New("a row moved under its lock")

// end takes an effect that has not begun out of the outbox for a reason: failed, or unknown if possibly committed.
func (m *mover) end(ctx context.Context, e *holdpoint.Effect, reason string) error {
	if e.State == holdpoint.EffectSending { // leased, nothing begun: it goes the way of the table
		if err := m.move(ctx, e, holdpoint.EffectPending, "retry", "effect.released", nil); err != nil {
			return err
		}
	}
	e.Reason = reason
	return m.move(ctx, e, holdpoint.EffectFailed, "end", "", nil)
}

// notBegun reports whether an effect can still be stopped: it is pending, or leased without an open attempt.
func (t *tx) notBegun(ctx context.Context, e holdpoint.Effect) (bool, error) {
	if e.State != holdpoint.EffectSending {
		return e.State == holdpoint.EffectPending, nil
	}
	var open int
	err := t.QueryRowContext(ctx, "SELECT COUNT(*) FROM attempts WHERE tenant = $1 AND effect_id = $2 AND settled_at IS NULL", e.Tenant, e.ID).Scan(&open)
	return open == 0, err
}

// lookupAt gives the time of the next look-up: after delay, but never before the connection's write deadline.
func (m *mover) lookupAt(e holdpoint.Effect, delay time.Duration) *time.Time {
	at := m.now.Add(delay)
	if e.SendBefore != nil && e.SendBefore.After(at) {
		at = *e.SendBefore
	}
	return &at
}

// settleRun ends what waited for failed effects and then the run itself, if none of its effects is open any more. It
// reports whether the run ended. Every verb that moves an effect calls it under the run's lock, so that of any number
// of effects that settle at the same time exactly one, the last, ends the run.
func (m *mover) settleRun(ctx context.Context, run *holdpoint.Run, moved ...holdpoint.Effect) (bool, error) {
	for i := 0; i < len(moved); i++ {
		if moved[i].State != holdpoint.EffectFailed {
			continue
		}
		waiting, err := m.effects(ctx, `tenant = $1 AND run_id = $2 AND state = 'pending' AND id IN (SELECT o.effect_id FROM effect_order o
 WHERE o.tenant = $1 AND o.run_id = $2 AND o.after_slot = $3) ORDER BY ord`, run.Tenant, run.ID, moved[i].Slot)
		if err != nil {
			return false, err
		}
		for j := range waiting {
			if err := m.end(ctx, &waiting[j], reasonPredecessor); err != nil {
				return false, err
			}
		}
		moved = append(moved, waiting...)
	}
	if run.State != holdpoint.RunApproved {
		return false, nil
	}
	var open int
	if err := m.QueryRowContext(ctx, `SELECT COUNT(*) FROM (SELECT 1 FROM effects WHERE tenant = $1 AND run_id = $2
 AND state IN ('pending', 'sending', 'unknown') LIMIT 1) AS first`, run.Tenant, run.ID).Scan(&open); err != nil || open > 0 {
		return false, err
	}
	failed, err := m.effects(ctx, "tenant = $1 AND run_id = $2 AND state = 'failed' ORDER BY ord", run.Tenant, run.ID)
	if err != nil {
		return false, err
	}
	to, reason, class := holdpoint.RunCompleted, holdpoint.ReasonNone, holdpoint.ClassNone
	for _, e := range failed {
		to = holdpoint.RunFailedTerminal
		if r := runReason(e.Reason); weight[r] > weight[reason] {
			reason, class = r, e.FailureClass
		}
	}
	kind := "run.completed"
	if to == holdpoint.RunFailedTerminal {
		kind = "run.failed"
	}
	return true, m.turnRun(ctx, run, kind, runMove{to: to, trigger: "settle", reason: reason, class: class})
}

// runReason is what the end of one failed effect says about its run.
func runReason(reason string) holdpoint.Reason {
	switch reason {
	case reasonAbandoned:
		return holdpoint.ReasonAbandoned
	case reasonCancelled:
		return holdpoint.ReasonCancelled
	case reasonWithdrawn:
		return holdpoint.ReasonWithdrawn
	case reasonExpired:
		return holdpoint.ReasonExpired
	case reasonPredecessor: // the predecessor says it
		return holdpoint.ReasonNone
	}
	return holdpoint.ReasonEffectFailed
}

// weight orders the reasons of a run whose effects ended for several; the one that somebody must look at first wins.
var weight = map[holdpoint.Reason]int{holdpoint.ReasonCancelled: 1, holdpoint.ReasonWithdrawn: 2, holdpoint.ReasonExpired: 3,
	holdpoint.ReasonEffectFailed: 4, holdpoint.ReasonAbandoned: 5}

// turnRun makes one transition of a locked run and notes it.
func (m *mover) turnRun(ctx context.Context, run *holdpoint.Run, kind string, to runMove) error {
	from := run.State
	turned, err := m.moveRun(ctx, *run, m.now, to)
	if err != nil {
		return err
	}
	*run = turned
	m.events = append(m.events, runEvent(kind, m.who, from, turned, nil))
	return nil
}

// microsPtr turns an optional time into a nullable parameter.
func microsPtr(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UnixMicro()
}

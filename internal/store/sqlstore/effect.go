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
	"github.com/holdpoint/holdpoint/internal/store"
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

// ids are the columns of a batch that names rows.
var ids = columns("tenant text, id text")

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
	var all []holdpoint.Run
	err := t.each(ids, named(refs), nil, func(with string, args []any) error {
		some, err := t.QueryContext(ctx, t.s.expand(with+" SELECT "+runColumns+` FROM v JOIN runs ON runs.tenant = v.tenant AND runs.id = v.id
 ORDER BY runs.tenant, runs.scope, runs.key_hmac {{for_update}}`), args...)
		locked, err := collect(some, err, func(row scanner) (holdpoint.Run, error) { return scanRun(row) })
		all = append(all, locked...)
		return err
	})
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

// mover moves rows of locked runs inside one transaction. What it moves stands in memory until write; flush writes it
// with its evidence and messages: one statement for each table, however many rows.
type mover struct {
	*tx
	now       time.Time
	who       holdpoint.Who
	runs      writes[runRef, runWrite]
	approvals writes[runRef, approvalWrite]
	effects   writes[runRef, effectWrite]
	events    []event
	messages  []store.Message
}

// writes are the rows of one table that wait to be written, in the order in which they first moved.
type writes[K comparable, W any] struct {
	rows  []*W
	index map[K]*W
}

// of gives the waiting write of a row, made by first if there is none.
func (w *writes[K, W]) of(key K, first func() W) *W {
	if row := w.index[key]; row != nil {
		return row
	}
	if w.index == nil {
		w.index = map[K]*W{}
	}
	row := first()
	w.index[key] = &row
	w.rows = append(w.rows, &row)
	return &row
}

func (w *writes[K, W]) take() []*W {
	rows := w.rows
	w.rows, w.index = nil, nil
	return rows
}

// note adds one line of evidence.
func (m *mover) note(kind, tenant, run string, data map[string]any, content []byte) {
	m.events = append(m.events, event{tenant: tenant, run: run, kind: kind, who: m.who, data: data, content: content})
}

// write writes the rows that have moved, before a statement that reads them.
func (m *mover) write(ctx context.Context) error {
	if err := m.writeRest(ctx); err != nil {
		return err
	}
	_, err := m.writeRuns(ctx, m.runs.take())
	return err
}

func (m *mover) writeRest(ctx context.Context) error {
	if err := m.writeApprovals(ctx, m.approvals.take()); err != nil {
		return err
	}
	return m.writeEffects(ctx, m.effects.take())
}

// flush writes what has moved, its evidence and its messages. The counter of a run that has moved moves with it.
func (m *mover) flush(ctx context.Context) error {
	if err := m.writeRest(ctx); err != nil {
		return err
	}
	for _, e := range m.events {
		if w := m.runs.index[runRef{e.tenant, e.run}]; w != nil {
			w.events++
		}
	}
	runs := m.runs.take()
	next, err := m.writeRuns(ctx, runs)
	if err != nil {
		return err
	}
	for _, w := range runs {
		next[place{w.run.Tenant, w.run.ID}] -= w.events
	}
	for i := range m.events {
		p := place{m.events[i].tenant, m.events[i].run}
		if last, moved := next[p]; moved {
			m.events[i].seq = last + 1
			next[p]++
		}
	}
	err = m.record(ctx, m.now, m.events...)
	if err == nil {
		err = m.queue(ctx, m.now, m.messages)
	}
	m.events, m.messages = nil, nil
	return err
}

// effectWrite is an effect as it stands now, and the state and version that its row still has.
type effectWrite struct {
	from    holdpoint.EffectState
	version int64
	effect  holdpoint.Effect
}

var effectWrites = columns(`tenant text, id text, from_state text, from_version bigint, state text, version bigint, hold text, reason text,
 possibly_committed bigint, failure_class text, attempts bigint, spent bigint, first_attempt_at bigint, next_attempt_at bigint, provider_id text,
 wire_hash text, send_before bigint, lookups bigint, absent_reads bigint, absent_resends bigint, next_lookup_at bigint, lease_owner text,
 lease_expires_at bigint, at bigint`)

// writeEffects writes effects back. Compare-and-set on state and version closes the race with whoever moved one since it
// was read; that cannot be under the run's lock, so a miss is a fault.
func (t *tx) writeEffects(ctx context.Context, list []*effectWrite) error {
	rows := make([][]any, len(list))
	for i, w := range list {
		e := w.effect
		next := e.UpdatedAt
		if e.NextAttemptAt != nil {
			next = *e.NextAttemptAt
		}
		rows[i] = []any{e.Tenant, e.ID, string(w.from), w.version, string(e.State), e.Version, string(e.Hold), e.Reason,
			bit(e.PossiblyCommitted), string(e.FailureClass), int64(e.Attempts), int64(e.Spent), microsPtr(e.FirstAttemptAt), next.UnixMicro(), e.ProviderID,
			e.WireHash, microsPtr(e.SendBefore), int64(e.Lookups), int64(e.AbsentReads), int64(e.AbsentResends), microsPtr(e.NextLookupAt), e.LeaseOwner,
			microsPtr(e.LeaseExpiresAt), e.UpdatedAt.UnixMicro()}
	}
	return t.moved(ctx, effectWrites, rows, ` UPDATE effects SET state = v.state, version = v.version, hold = v.hold,
 held_at = CASE WHEN v.hold = '' THEN NULL WHEN effects.hold = v.hold THEN held_at ELSE v.at END,
 unknown_since = CASE WHEN v.state <> 'unknown' THEN NULL WHEN effects.state = 'unknown' THEN unknown_since ELSE v.at END,
 reason = v.reason, possibly_committed = v.possibly_committed, failure_class = v.failure_class, attempts = v.attempts, spent = v.spent,
 first_attempt_at = v.first_attempt_at, next_attempt_at = v.next_attempt_at, provider_id = v.provider_id, wire_hash = v.wire_hash,
 send_before = v.send_before, lookups = v.lookups, absent_reads = v.absent_reads, absent_resends = v.absent_resends,
 next_lookup_at = v.next_lookup_at, lease_owner = v.lease_owner, lease_expires_at = v.lease_expires_at, updated_at = v.at
 FROM v WHERE effects.tenant = v.tenant AND effects.id = v.id AND effects.state = v.from_state AND effects.version = v.from_version`)
}

// moved runs an update of rows that must meet every one of them.
func (t *tx) moved(ctx context.Context, l layout, rows [][]any, update string) error {
	var n int64
	err := t.each(l, rows, nil, func(with string, args []any) error {
		res, err := t.ExecContext(ctx, with+update, args...)
		if err != nil {
			return err
		}
		some, err := res.RowsAffected()
		n += some
		return err
	})
	if err == nil && n != int64(len(rows)) {
		err = errMoved
	}
	return err
}

// effectsWhere reads effects by a condition on their columns.
func (t *tx) effectsWhere(ctx context.Context, where string, args ...any) ([]holdpoint.Effect, error) {
	rows, err := t.QueryContext(ctx, "SELECT "+effectColumns+" FROM effects WHERE "+where, args...)
	return collect(rows, err, func(row scanner) (holdpoint.Effect, error) { return scanEffect(row) })
}

// lockEffect locks the run of an effect and reads both; not_found if there is no such effect. The lock of the run is
// enough: whoever moves an effect holds it.
func (t *tx) lockEffect(ctx context.Context, tenant, id string) (run holdpoint.Run, e holdpoint.Effect, now time.Time, err error) {
	found, err := t.effectsWhere(ctx, "tenant = $1 AND id = $2", tenant, id)
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
	if found, err = t.effectsWhere(ctx, "tenant = $1 AND id = $2", tenant, id); err != nil {
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
	m.save(e, to)
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

// save takes an effect, with what the caller has changed, into state to and ends its lease.
func (m *mover) save(e *holdpoint.Effect, to holdpoint.EffectState) {
	e.LeaseOwner, e.LeaseExpiresAt = "", nil
	m.put(e, to)
}

// put takes an effect, with what the caller has changed, into state to under its lease.
func (m *mover) put(e *holdpoint.Effect, to holdpoint.EffectState) {
	from, version := e.State, e.Version
	e.State, e.Version, e.UpdatedAt = to, e.Version+1, m.now
	m.keep(*e, from, version)
}

// keep has an effect written as it stands; its row has state from and version, unless it waits to be written already.
func (m *mover) keep(e holdpoint.Effect, from holdpoint.EffectState, version int64) {
	w := m.effects.of(runRef{e.Tenant, e.ID}, func() effectWrite { return effectWrite{from: from, version: version} })
	w.effect = e
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
// reports whether the run ended.
func (m *mover) settleRun(ctx context.Context, run *holdpoint.Run, moved ...holdpoint.Effect) (bool, error) {
	ended, err := m.settleRuns(ctx, []*holdpoint.Run{run}, moved)
	return len(ended) == 1, err
}

// standing are the columns of effects that decide how a run ends.
const standing = "effects.tenant, effects.run_id, effects.state, effects.reason, effects.failure_class"

// settleRuns does the same for several runs of which some effects have moved. Every verb that moves an effect calls it
// under the run's lock, so that of any number of effects that settle at the same time exactly one, the last, ends the run.
func (m *mover) settleRuns(ctx context.Context, runs []*holdpoint.Run, moved []holdpoint.Effect) (ended map[*holdpoint.Run]bool, err error) {
	if err := m.endWaiting(ctx, moved); err != nil {
		return nil, err
	}
	if err := m.write(ctx); err != nil {
		return nil, err
	}
	var rows [][]any
	for _, run := range runs {
		if run.State == holdpoint.RunApproved {
			rows = append(rows, []any{run.Tenant, run.ID})
		}
	}
	type end struct {
		open, failed bool
		reason       holdpoint.Reason
		class        holdpoint.FailureClass
	}
	ends := map[runRef]end{}
	err = m.each(ids, rows, nil, func(with string, args []any) error {
		found, err := m.QueryContext(ctx, with+" SELECT "+standing+` FROM v JOIN effects ON effects.tenant = v.tenant AND effects.run_id = v.id
 WHERE effects.state IN ('pending', 'sending', 'unknown', 'failed') ORDER BY effects.ord`, args...)
		_, err = collect(found, err, func(row scanner) (x struct{}, err error) {
			var at runRef
			var state holdpoint.EffectState
			var reason string
			var class holdpoint.FailureClass
			if err := row.Scan(&at.tenant, &at.id, &state, &reason, &class); err != nil {
				return x, err
			}
			e := ends[at]
			e.open, e.failed = e.open || state.Open(), e.failed || state == holdpoint.EffectFailed
			if r := runReason(reason); state == holdpoint.EffectFailed && weight[r] > weight[e.reason] {
				e.reason, e.class = r, class
			}
			ends[at] = e
			return x, nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	ended = map[*holdpoint.Run]bool{}
	for _, run := range runs {
		e := ends[runRef{run.Tenant, run.ID}]
		if run.State != holdpoint.RunApproved || e.open {
			continue
		}
		to, kind := holdpoint.RunCompleted, "run.completed"
		if e.failed {
			to, kind = holdpoint.RunFailedTerminal, "run.failed"
		}
		if err := m.turnRun(run, kind, runMove{to: to, trigger: "settle", reason: e.reason, class: e.class}); err != nil {
			return nil, err
		}
		ended[run] = true
	}
	return ended, nil
}

// endWaiting ends the effects that wait for one that has failed, and those that wait for them.
func (m *mover) endWaiting(ctx context.Context, moved []holdpoint.Effect) error {
	for i := 0; i < len(moved); i++ {
		if moved[i].State != holdpoint.EffectFailed {
			continue
		}
		if err := m.write(ctx); err != nil {
			return err
		}
		waiting, err := m.effectsWhere(ctx, `tenant = $1 AND run_id = $2 AND state = 'pending' AND id IN (SELECT o.effect_id FROM effect_order o
 WHERE o.tenant = $1 AND o.run_id = $2 AND o.after_slot = $3) ORDER BY ord`, moved[i].Tenant, moved[i].RunID, moved[i].Slot)
		if err != nil {
			return err
		}
		for j := range waiting {
			if err := m.end(ctx, &waiting[j], reasonPredecessor); err != nil {
				return err
			}
		}
		moved = append(moved, waiting...)
	}
	return nil
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
func (m *mover) turnRun(run *holdpoint.Run, kind string, to runMove) error {
	from := run.State
	if err := m.moveRun(run, to); err != nil {
		return err
	}
	m.events = append(m.events, runEvent(kind, m.who, from, *run, nil))
	return nil
}

// moveRun makes one transition of a locked run.
func (m *mover) moveRun(run *holdpoint.Run, to runMove) error {
	next, worked, err := nextRun(*run, m.now, to)
	if err != nil {
		return err
	}
	w := m.runs.of(runRef{run.Tenant, run.ID}, func() runWrite { return runWrite{from: run.State, version: run.Version} })
	if w.run = next; worked != nil {
		w.worked = worked
	}
	*run = next
	return nil
}

// microsPtr turns an optional time into a nullable parameter.
func microsPtr(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UnixMicro()
}

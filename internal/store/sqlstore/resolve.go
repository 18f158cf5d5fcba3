package sqlstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// ResolveEffect implements store.Outbox.
func (s *Store) ResolveEffect(ctx context.Context, r store.EffectVerdict) (store.Settled, error) {
	return s.withEffect(ctx, "resolve effect", r.Tenant, r.EffectID, r.Who, func(m *mover, e *holdpoint.Effect) error {
		if e.State != holdpoint.EffectUnknown {
			return notNow(*e, "only an effect that is unknown takes a verdict")
		}
		data := map[string]any{"effect_id": e.ID, "slot": e.Slot, "verdict": r.Verdict}
		if r.ProviderID != "" {
			data["provider_id"] = r.ProviderID
		}
		m.note("effect.resolved", e.Tenant, e.RunID, data, r.ReasonText)
		switch r.Verdict {
		case holdpoint.VerdictSent:
			if r.ProviderID != "" {
				e.ProviderID = r.ProviderID
			}
			return m.move(ctx, e, holdpoint.EffectCompleted, "sent", "", nil)
		case holdpoint.VerdictNotSent:
			e.AbsentReads = 0
			return m.again(ctx, e, "not_sent", 0)
		case holdpoint.VerdictAbandon: // possibly committed stays: nobody knows, and nobody will look any more
			e.Reason = reasonAbandoned
			return m.move(ctx, e, holdpoint.EffectFailed, "abandon", "", nil)
		}
		return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "a verdict is sent, not_sent or abandon")
	})
}

// CancelEffect implements store.Outbox.
func (s *Store) CancelEffect(ctx context.Context, tenant, effectID string, reasonText []byte, who holdpoint.Who) (store.Settled, error) {
	return s.withEffect(ctx, "cancel effect", tenant, effectID, who, func(m *mover, e *holdpoint.Effect) error {
		free, err := m.notBegun(ctx, *e)
		if err != nil {
			return err
		}
		if !free {
			return notNow(*e, "only an effect that has not begun can be cancelled")
		}
		m.note("effect.cancelled", e.Tenant, e.RunID, map[string]any{"effect_id": e.ID, "slot": e.Slot}, reasonText)
		return m.end(ctx, e, reasonCancelled)
	})
}

// withEffect runs one verb of a person on one effect under the lock of its run, and settles the run.
func (s *Store) withEffect(ctx context.Context, verb, tenant, id string, who holdpoint.Who, fn func(m *mover, e *holdpoint.Effect) error) (store.Settled, error) {
	var out store.Settled
	err := s.do(ctx, verb, func(t *tx) error {
		run, e, now, err := t.lockEffect(ctx, tenant, id)
		if err != nil {
			return err
		}
		m := mover{tx: t, now: now, who: who}
		if err := fn(&m, &e); err != nil {
			return err
		}
		ended, err := m.settleRun(ctx, &run, e)
		if err != nil {
			return err
		}
		out = store.Settled{Effect: e, Run: run, RunEnded: ended}
		t.notify("effects")
		return m.flush(ctx)
	})
	if err == nil {
		s.hint("effects")
	}
	return out, err
}

// CloseExpired implements store.Outbox. An effect of a workflow that keep does not name stays, unless keep names "".
func (s *Store) CloseExpired(ctx context.Context, tenant string, keep map[string]time.Duration, limit int) ([]store.Settled, error) {
	if len(keep) == 0 {
		return nil, nil
	}
	var all []store.Settled
	err := s.do(ctx, "close expired effects", func(t *tx) error {
		all = nil
		now, err := t.now(ctx)
		if err != nil {
			return err
		}
		args := []any{tenant, limit}
		place := func(v any) string {
			args = append(args, v)
			return fmt.Sprintf("$%d", len(args))
		}
		var over, named []string
		for _, workflow := range slices.Sorted(maps.Keys(keep)) {
			if workflow == "" {
				continue
			}
			name := place(workflow)
			named = append(named, name)
			over = append(over, "(effects.workflow = "+name+" AND effects.held_at <= "+place(now.Add(-keep[workflow]).UnixMicro())+")")
		}
		if d, ok := keep[""]; ok {
			rest := "effects.held_at <= " + place(now.Add(-d).UnixMicro())
			if len(named) > 0 {
				rest += " AND effects.workflow NOT IN (" + strings.Join(named, ", ") + ")"
			}
			over = append(over, "("+rest+")")
		}
		// SKIP LOCKED on run and effect: what a person is deciding about at this moment is left to the next sweep.
		rows, err := t.QueryContext(ctx, s.expand("SELECT "+effectColumns+` FROM effects
 JOIN runs ON runs.tenant = effects.tenant AND runs.id = effects.run_id
 WHERE effects.tenant = $1 AND effects.state = 'pending' AND effects.hold = 'expired' AND (`+strings.Join(over, " OR ")+`)
 ORDER BY effects.held_at, effects.id LIMIT $2 {{for_update}} {{skip_locked}}`), args...)
		expired, err := collect(rows, err, func(row scanner) (holdpoint.Effect, error) { return scanEffect(row) })
		if err != nil {
			return err
		}
		m := mover{tx: t, now: now, who: sweeper}
		for _, e := range expired {
			run, _, err := t.lockRun(ctx, e.Tenant, e.RunID)
			if err != nil {
				return err
			}
			found, err := t.effectsWhere(ctx, "tenant = $1 AND id = $2", e.Tenant, e.ID)
			if err != nil {
				return err
			}
			if e = found[0]; e.State != holdpoint.EffectPending { // ended with a predecessor a moment ago
				continue
			}
			e.FailureClass = holdpoint.ClassExpired
			if err := m.end(ctx, &e, reasonExpired); err != nil {
				return err
			}
			ended, err := m.settleRun(ctx, &run, e)
			if err != nil {
				return err
			}
			all = append(all, store.Settled{Effect: e, Run: run, RunEnded: ended})
		}
		return m.flush(ctx)
	})
	return all, err
}

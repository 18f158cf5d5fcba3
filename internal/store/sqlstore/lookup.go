package sqlstore

import (
	"context"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// The answers of a look-up (store.LookupResult.State).
const (
	lookupFound        = "found"
	lookupAbsent       = "absent"
	lookupProvedAbsent = "proved_absent"
	lookupRepeatable   = "repeatable" // the same request again is proved to be harmless; it may still have been accepted
	lookupUnclear      = "unclear"
)

// LeaseLookups implements store.Outbox.
func (s *Store) LeaseLookups(ctx context.Context, owner string, lease time.Duration, limit int) ([]store.LeasedEffect, error) {
	var leased []store.LeasedEffect
	err := s.do(ctx, "lease look-ups", func(t *tx) error {
		// SKIP LOCKED on run and effect: several dispatchers share the look-ups, and none waits for a verdict or a late
		// answer that is being written. The new version fences off whoever held an expired lease.
		rows, err := t.QueryContext(ctx, s.expand(`WITH picked AS MATERIALIZED (
 SELECT e.tenant, e.id FROM effects e JOIN runs r ON r.tenant = e.tenant AND r.id = e.run_id
 WHERE e.state = 'unknown' AND e.next_lookup_at <= {{now}} AND (e.send_before IS NULL OR e.send_before <= {{now}})
 AND (e.lease_expires_at IS NULL OR e.lease_expires_at <= {{now}})
 ORDER BY e.next_lookup_at, e.id LIMIT $4 {{for_update}} {{skip_locked}})
UPDATE effects SET lease_owner = $2, lease_expires_at = {{now}} + $3, version = effects.version + 1, updated_at = {{now}}
 FROM picked WHERE effects.tenant = picked.tenant AND effects.id = picked.id AND effects.state = 'unknown'
 RETURNING `+leasedColumns), s.clock(), owner, micros(lease), limit)
		if leased, err = collect(rows, err, scanLeased); err != nil {
			return err
		}
		return t.judged(ctx, leased)
	})
	return leased, err
}

// SettleLookup implements store.Outbox.
func (s *Store) SettleLookup(ctx context.Context, owner string, l store.LookupResult) (store.Settled, error) {
	var out store.Settled
	err := s.do(ctx, "settle look-up", func(t *tx) error {
		run, e, now, err := t.lockEffect(ctx, l.Tenant, l.EffectID)
		if err != nil {
			return err
		}
		out = store.Settled{Effect: e, Run: run}
		// Owner and version: a look-up that was overtaken by a late answer, a verdict or another look-up counts no more.
		if e.State != holdpoint.EffectUnknown || e.LeaseOwner != owner || e.Version != l.Version {
			out.Lost = true
			return nil
		}
		m := mover{tx: t, now: now, who: l.Who}
		e.Lookups++
		data := map[string]any{"effect_id": e.ID, "slot": e.Slot, "state": l.State, "lookups": e.Lookups}
		if l.Detail != "" {
			data["detail"] = l.Detail
		}
		m.note("lookup.settled", e.Tenant, e.RunID, data, nil)
		switch l.State {
		case lookupFound:
			if l.ProviderID != "" {
				e.ProviderID = l.ProviderID
			}
			e.AbsentReads = 0
			err = m.move(ctx, &e, holdpoint.EffectCompleted, "found", "", nil)
		case lookupProvedAbsent:
			e.AbsentReads, e.AbsentResends = 0, e.AbsentResends+1
			err = m.again(ctx, &e, "absent", max(l.Next, 0))
		case lookupRepeatable:
			if ending(e.Reason) { // what is not wanted any more is not repeated, however harmless
				err = m.lookAgain(ctx, &e, l.Next)
				break
			}
			if e.NextAttemptAt = &now; e.ExecuteBy != nil && !now.Before(*e.ExecuteBy) {
				e.Hold = holdpoint.HoldExpired
			}
			err = m.move(ctx, &e, holdpoint.EffectPending, "absent", "", nil)
		case lookupAbsent:
			e.AbsentReads++
			err = m.lookAgain(ctx, &e, l.Next)
		case lookupUnclear:
			e.AbsentReads = 0
			err = m.lookAgain(ctx, &e, l.Next)
		default:
			err = holdpoint.Errorf(holdpoint.CodeInternal, "a look-up ends found, absent, proved_absent, repeatable or unclear; this is a fault of the program")
		}
		if err != nil {
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

// lookAgain leaves an effect unknown until its next look-up, if there is to be one.
func (m *mover) lookAgain(ctx context.Context, e *holdpoint.Effect, next time.Duration) error {
	e.NextLookupAt = nil
	if next > 0 {
		e.NextLookupAt = m.lookupAt(*e, next)
	}
	m.save(e, e.State)
	return nil
}

// again makes an unknown effect that is known not to have happened pending: due after delay, held if its time is over.
// If it was cancelled, withdrawn or closed while it was in doubt, it ends instead.
func (m *mover) again(ctx context.Context, e *holdpoint.Effect, trigger string, delay time.Duration) error {
	at := m.now.Add(delay)
	e.PossiblyCommitted, e.NextAttemptAt = false, &at
	if e.ExecuteBy != nil && !m.now.Before(*e.ExecuteBy) {
		e.Hold = holdpoint.HoldExpired
	}
	reason := e.Reason
	if !ending(reason) {
		e.Reason = ""
	}
	if err := m.move(ctx, e, holdpoint.EffectPending, trigger, "", nil); err != nil || !ending(reason) {
		return err
	}
	return m.end(ctx, e, reason)
}

// ScheduleLookup implements store.Outbox.
func (s *Store) ScheduleLookup(ctx context.Context, tenant, effectID string, who holdpoint.Who) (holdpoint.Effect, error) {
	var out holdpoint.Effect
	err := s.do(ctx, "schedule look-up", func(t *tx) error {
		_, e, now, err := t.lockEffect(ctx, tenant, effectID)
		if err != nil {
			return err
		}
		if e.State != holdpoint.EffectUnknown {
			return notNow(e, "only an effect that is unknown is looked up")
		}
		m := mover{tx: t, now: now, who: who}
		e.NextLookupAt = m.lookupAt(e, 0)
		// Under the run's lock, and without a new version: a look-up that is under way keeps its lease.
		res, err := t.ExecContext(ctx, "UPDATE effects SET next_lookup_at = $4, updated_at = $5 WHERE tenant = $1 AND id = $2 AND version = $3 AND state = 'unknown'",
			tenant, effectID, e.Version, e.NextLookupAt.UnixMicro(), now.UnixMicro())
		if err := oneRow(res, err, errMoved); err != nil {
			return err
		}
		e.UpdatedAt = now
		m.note("lookup.scheduled", tenant, e.RunID, map[string]any{"effect_id": e.ID, "slot": e.Slot, "at": e.NextLookupAt}, nil)
		out = e
		t.notify("effects")
		return m.flush(ctx)
	})
	if err == nil {
		s.hint("effects")
	}
	return out, err
}

// notNow refuses a verb that the effect's state does not permit.
func notNow(e holdpoint.Effect, sentence string) error {
	return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "%s; this one is %s", sentence, e.State).With("state", e.State)
}

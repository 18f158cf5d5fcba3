package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// LeaseEffects implements store.Outbox.
func (s *Store) LeaseEffects(ctx context.Context, l store.EffectLease) ([]store.LeasedEffect, error) {
	if !l.Enabled {
		return nil, nil
	}
	var leased []store.LeasedEffect
	err := s.do(ctx, "lease effects", func(t *tx) error {
		leased = nil
		if err := t.inOrder(ctx); err != nil {
			return err
		}
		if err := t.holdExpired(ctx, l.Limit); err != nil {
			return err
		}
		var err error
		leased, err = t.leaseEffects(ctx, l)
		return err
	})
	return leased, err
}

// inOrder has PostgreSQL walk along the order of what is due for the rest of the transaction: it never pays to sort a
// backlog in order to lease some of it.
func (t *tx) inOrder(ctx context.Context) error {
	if !t.s.postgres {
		return nil
	}
	_, err := t.ExecContext(ctx, "SET LOCAL enable_sort = off")
	return err
}

// holdExpired holds effects whose time to be sent is over. SKIP LOCKED on run and effect: a leaser never waits, and
// what it passes over is found by the next call.
func (t *tx) holdExpired(ctx context.Context, limit int) error {
	rows, err := t.QueryContext(ctx, t.s.expand(`WITH due AS MATERIALIZED (
 SELECT e.tenant, e.id FROM effects e JOIN runs r ON r.tenant = e.tenant AND r.id = e.run_id
 WHERE e.state = 'pending' AND e.hold = '' AND e.execute_by <= {{now}}
 ORDER BY e.execute_by LIMIT $2 {{for_update}} {{skip_locked}})
UPDATE effects SET hold = 'expired', held_at = {{now}}, version = effects.version + 1, updated_at = {{now}}
 FROM due WHERE effects.tenant = due.tenant AND effects.id = due.id AND effects.state = 'pending' AND effects.hold = ''
 RETURNING `+effectColumns), t.s.clock(), limit)
	held, err := collect(rows, err, func(row scanner) (holdpoint.Effect, error) { return scanEffect(row) })
	if err != nil || len(held) == 0 {
		return err
	}
	m := mover{tx: t, now: held[0].UpdatedAt, who: dispatcher}
	for _, e := range held {
		m.note("effect.held", e.Tenant, e.RunID, map[string]any{"effect_id": e.ID, "slot": e.Slot, "hold": e.Hold, "version": e.Version}, nil)
	}
	return m.flush(ctx)
}

// leaseEffects is the statement of I2. It closes the race of several dispatchers for one effect (row locks, SKIP LOCKED
// and the state compared again in the UPDATE) and of a dispatcher with everything that holds, cancels or ends an
// effect, since those lock the run first. A switch that is flipped after the statement began is seen by BeginAttempts.
//
// The conditions are scalar subqueries, and the run is joined row by row, so that PostgreSQL walks along the index of what
// is due and stops at the limit, however long the backlog is.
func (t *tx) leaseEffects(ctx context.Context, l store.EffectLease) ([]store.LeasedEffect, error) {
	args := []any{t.s.clock(), l.Owner, micros(l.For), l.Limit}
	skip := ""
	if len(l.Skip) > 0 {
		marks := make([]string, len(l.Skip))
		for i, provider := range l.Skip {
			args = append(args, provider)
			marks[i] = fmt.Sprintf("$%d", len(args))
		}
		skip = " AND e.provider NOT IN (" + strings.Join(marks, ", ") + ")"
	}
	rows, err := t.QueryContext(ctx, t.s.expand(`WITH picked AS MATERIALIZED (
 SELECT e.tenant, e.id FROM effects e {{approved_run}}
 WHERE e.state = 'pending' AND e.hold = '' AND e.next_attempt_at <= {{now}} AND e.execute_by > {{now}}
 AND (SELECT w.is_on FROM switches w WHERE w.tenant = '' AND w.scope = 'global') = 1
 AND (SELECT w.is_on FROM switches w WHERE w.tenant = e.tenant AND w.scope = 'tenant') = 1
 AND (SELECT COUNT(*) FROM switches w WHERE w.tenant = e.tenant AND w.is_on = 0
  AND w.scope IN ('workflow:' || e.workflow, 'connector:' || e.connector, 'type:' || e.type)) = 0
 AND (SELECT COUNT(*) FROM connector_holds h WHERE h.tenant = e.tenant AND h.connector = e.connector
  AND (h.type = '' OR h.type = e.type) AND (h.until IS NULL OR h.until > {{now}})) = 0
 AND (SELECT COUNT(*) FROM effect_order o LEFT JOIN effects p ON p.tenant = o.tenant AND p.run_id = o.run_id AND p.slot = o.after_slot
  WHERE o.tenant = e.tenant AND o.effect_id = e.id AND (p.state IS NULL OR p.state <> 'completed')) = 0`+skip+`
 ORDER BY e.next_attempt_at, e.id LIMIT $4 {{for_update}} {{skip_locked}})
UPDATE effects SET state = 'sending', lease_owner = $2, lease_expires_at = {{now}} + $3, version = effects.version + 1, updated_at = {{now}}
 FROM picked WHERE effects.tenant = picked.tenant AND effects.id = picked.id AND effects.state = 'pending' AND effects.hold = ''
 RETURNING `+leasedColumns), args...)
	leased, err := collect(rows, err, scanLeased)
	if err != nil || len(leased) == 0 {
		return nil, err
	}
	if err := t.judged(ctx, leased); err != nil {
		return nil, err
	}
	m := mover{tx: t, now: leased[0].Now, who: dispatcher}
	for _, e := range leased {
		m.note("effect.leased", e.Tenant, e.RunID, map[string]any{"effect_id": e.ID, "slot": e.Slot, "from": holdpoint.EffectPending,
			"to": holdpoint.EffectSending, "version": e.Version, "owner": l.Owner}, nil)
	}
	return leased, m.flush(ctx)
}

// leasedColumns are effectColumns with the sealed content and what belongs to the run.
const leasedColumns = effectColumns + `, effects.target, effects.payload,
 (SELECT r.run_key FROM runs r WHERE r.tenant = effects.tenant AND r.id = effects.run_id),
 (SELECT r.key FROM runs r WHERE r.tenant = effects.tenant AND r.id = effects.run_id)`

// scanLeased reads leasedColumns of a row that its statement has just written: updated_at is that statement's clock.
func scanLeased(row scanner) (store.LeasedEffect, error) {
	var l store.LeasedEffect
	var err error
	l.Effect, err = scanEffect(row, &l.Target, &l.Payload, &l.RunKey, &l.RunKeyT)
	l.Now = l.UpdatedAt
	return l, err
}

// leases are the columns that name leased effects, the decision that released each and the connector that sends it.
var leases = columns("tenant text, id text, approval_id text, connector text, version text")

// judged reads what the dispatcher judges leased effects by: who released them, whether their connector is proved, and
// which policy is active.
func (t *tx) judged(ctx context.Context, leased []store.LeasedEffect) error {
	rows := make([][]any, len(leased))
	of := make(map[runRef]*store.LeasedEffect, len(leased))
	for i := range leased {
		e := &leased[i]
		rows[i], of[runRef{e.Tenant, e.ID}] = []any{e.Tenant, e.ID, e.ApprovalID, e.Connector, e.ConnectorVersion}, e
	}
	return t.each(leases, rows, []any{t.s.clock()}, func(with string, args []any) error {
		found, err := t.QueryContext(ctx, t.s.expand(with+` SELECT v.tenant, v.id, approvals.roles, COALESCE(proofs.key_life_us, 0), tenants.active_policy, `+personColumns+`
 FROM v JOIN tenants ON tenants.tenant = v.tenant
 JOIN approvals ON approvals.tenant = v.tenant AND approvals.id = v.approval_id
 LEFT JOIN proofs ON proofs.tenant = v.tenant AND proofs.connector = v.connector AND proofs.version = v.version AND proofs.expires_at > {{now}}
 LEFT JOIN decisions ON decisions.tenant = v.tenant AND decisions.approval_id = v.approval_id AND decisions.decision = 'approve'
 LEFT JOIN people ON people.tenant = decisions.tenant AND people.id = decisions.person_id
 ORDER BY decisions.created_at, decisions.id`), args...)
		_, err = collect(found, err, func(row scanner) (x struct{}, err error) {
			var at runRef
			var roles, active string
			var life int64
			var p holdpoint.Person
			dest, done := personDest(&p)
			if err := row.Scan(append([]any{&at.tenant, &at.id, &roles, &life, &active}, dest...)...); err != nil {
				return x, err
			}
			e := of[at]
			if done(); e.Decider.ID == "" && p.ID != "" { // the first who approved and is still there
				e.Decider = p
			}
			e.KeyLife, e.Policy = time.Duration(life)*time.Microsecond, active
			return x, json.Unmarshal([]byte(roles), &e.Roles)
		})
		return err
	})
}

// RecoverEffects implements store.Outbox. An open attempt is settled as class crash so that it is in flight no longer;
// what its process may still learn overwrites that (SettleAttempts).
func (s *Store) RecoverEffects(ctx context.Context, limit int) ([]store.Settled, error) {
	var all []store.Settled
	err := s.do(ctx, "recover effects", func(t *tx) error {
		all = nil
		now, err := t.now(ctx)
		if err != nil {
			return err
		}
		// SKIP LOCKED on run and effect: two recoverers share the work, and a settlement that is under way wins.
		rows, err := t.QueryContext(ctx, t.s.expand(`SELECT `+effectColumns+` FROM effects
 JOIN runs ON runs.tenant = effects.tenant AND runs.id = effects.run_id
 WHERE effects.state = 'sending' AND effects.lease_expires_at <= $1 ORDER BY effects.lease_expires_at LIMIT $2 {{for_update}} {{skip_locked}}`),
			now.UnixMicro(), limit)
		lost, err := collect(rows, err, func(row scanner) (holdpoint.Effect, error) { return scanEffect(row) })
		if err != nil {
			return err
		}
		m := mover{tx: t, now: now, who: sweeper}
		for _, e := range lost {
			unused, err := t.notBegun(ctx, e)
			if err != nil {
				return err
			}
			if unused {
				e.NextAttemptAt = &now
				err = m.move(ctx, &e, holdpoint.EffectPending, "retry", "effect.released", map[string]any{"cause": "lease_expired"})
			} else {
				err = m.crashed(ctx, &e)
			}
			if err != nil {
				return err
			}
			run, _, err := t.lockRun(ctx, e.Tenant, e.RunID)
			if err != nil {
				return err
			}
			all = append(all, store.Settled{Effect: e, Run: run})
		}
		if err := m.closeOrphans(ctx, limit); err != nil {
			return err
		}
		if len(lost) > 0 {
			t.notify("effects")
		}
		return m.flush(ctx)
	})
	if err == nil && len(all) > 0 {
		s.hint("effects")
	}
	return all, err
}

// crashed doubts an effect whose process was lost between its attempt row and its settlement.
func (m *mover) crashed(ctx context.Context, e *holdpoint.Effect) error {
	rows, err := m.QueryContext(ctx, `UPDATE attempts SET result = 'unknown', class = 'crash', settled_at = $3
 WHERE tenant = $1 AND effect_id = $2 AND settled_at IS NULL RETURNING `+attemptColumns, e.Tenant, e.ID, m.now.UnixMicro())
	attempts, err := collect(rows, err, func(row scanner) (holdpoint.Attempt, error) { return scanAttempt(row) })
	if err != nil {
		return err
	}
	for _, a := range attempts {
		m.noteAttempt("attempt.settled", e.Tenant, a)
	}
	if e.State != holdpoint.EffectSending {
		return nil
	}
	e.PossiblyCommitted, e.FailureClass, e.NextLookupAt = true, holdpoint.ClassCrash, m.lookupAt(*e, 0)
	return m.move(ctx, e, holdpoint.EffectUnknown, "doubt", "", nil)
}

// closeOrphans settles open attempts of effects that went on without them, by a late answer to an earlier attempt,
// and whose process did not come back by their write deadline.
func (m *mover) closeOrphans(ctx context.Context, limit int) error {
	rows, err := m.QueryContext(ctx, m.s.expand(`SELECT `+effectColumns+` FROM effects
 JOIN runs ON runs.tenant = effects.tenant AND runs.id = effects.run_id
 JOIN attempts ON attempts.tenant = effects.tenant AND attempts.effect_id = effects.id
 WHERE attempts.settled_at IS NULL AND attempts.send_before <= $1 AND effects.state <> 'sending'
 ORDER BY attempts.begun_at LIMIT $2 {{for_update}} {{skip_locked}}`), m.now.UnixMicro(), limit)
	orphans, err := collect(rows, err, func(row scanner) (holdpoint.Effect, error) { return scanEffect(row) })
	if err != nil {
		return err
	}
	for _, e := range orphans {
		if err := m.crashed(ctx, &e); err != nil {
			return err
		}
	}
	return nil
}

package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// HoldEffects implements store.Outbox. A hold that only a person may lift is never replaced by one that something else
// may: authority goes over the holds of a connector, every other hold only on an effect that has none.
func (s *Store) HoldEffects(ctx context.Context, tenant string, effectIDs []string, hold holdpoint.Hold, who holdpoint.Who) (int, error) {
	over := []holdpoint.Hold{holdpoint.HoldNone}
	switch hold {
	case holdpoint.HoldAuthority:
		over = append(over, holdpoint.HoldCredentials, holdpoint.HoldPermission, holdpoint.HoldQuota, holdpoint.HoldConfiguration)
	case holdpoint.HoldCredentials, holdpoint.HoldPermission, holdpoint.HoldQuota, holdpoint.HoldConfiguration, holdpoint.HoldRestored:
	default:
		return 0, holdpoint.Errorf(holdpoint.CodeInternal, "the hold %q is not set by hand; this is a fault of the program", hold)
	}
	if len(effectIDs) == 0 {
		return 0, nil
	}
	args := make([]any, 0, 1+len(effectIDs))
	args = append(args, tenant)
	for _, id := range effectIDs {
		args = append(args, id)
	}
	return s.rehold(ctx, "hold effects", who, "effect.held", hold, nil,
		"tenant = $1 AND id IN (VALUES "+tuples(len(effectIDs), 1, 2)+") AND state = 'pending'", args,
		func(e holdpoint.Effect) bool { return slices.Contains(over, e.Hold) })
}

// rehold changes the hold of pending effects that a condition names and wanted confirms under the locks of their runs,
// then does what else belongs to the verb, and returns how many it changed.
func (s *Store) rehold(ctx context.Context, verb string, who holdpoint.Who, kind string, hold holdpoint.Hold, then func(m *mover, n int) error,
	where string, args []any, wanted func(holdpoint.Effect) bool) (int, error) {
	n := 0
	err := s.do(ctx, verb, func(t *tx) error {
		n = 0
		found, err := t.effectsWhere(ctx, where, args...)
		if err != nil {
			return err
		}
		refs := make([]runRef, len(found))
		for i, e := range found {
			refs[i] = runRef{e.Tenant, e.RunID}
		}
		m := mover{tx: t, who: who}
		runs, now, err := t.lockRuns(ctx, refs)
		if err != nil {
			return err
		}
		m.now = now
		// Read again under the locks: a dispatcher may have leased some of them in between.
		if found, err = t.effectsWhere(ctx, where+" ORDER BY id", args...); err != nil {
			return err
		}
		for i := range found {
			e := &found[i]
			if runs[runRef{e.Tenant, e.RunID}] == nil || !wanted(*e) {
				continue
			}
			before := e.Hold
			e.Hold = hold
			m.save(e, e.State)
			m.note(kind, e.Tenant, e.RunID, map[string]any{"effect_id": e.ID, "slot": e.Slot, "hold": cmp.Or(hold, before), "version": e.Version}, nil)
			n++
		}
		if then != nil {
			if err := then(&m, n); err != nil {
				return err
			}
		}
		return m.flush(ctx)
	})
	return n, err
}

// HoldConnector implements store.Outbox.
func (s *Store) HoldConnector(ctx context.Context, h store.ConnectorHold, who holdpoint.Who) error {
	return s.do(ctx, "hold connector", func(t *tx) error {
		now, err := t.now(ctx)
		if err != nil {
			return err
		}
		m := mover{tx: t, now: now, who: who}
		if err := m.holdConnector(ctx, h); err != nil {
			return err
		}
		return m.flush(ctx)
	})
}

// holdConnector holds a connector. A hold that is repeated while it stands keeps its beginning, and is no news; a passing
// one never shortens one that a person must lift. One statement: two workers that meet the same refusal write one hold.
func (m *mover) holdConnector(ctx context.Context, h store.ConnectorHold) error {
	var until any
	if !h.Until.IsZero() {
		until = h.Until.UnixMicro()
	}
	var since int64
	err := m.QueryRowContext(ctx, `INSERT INTO connector_holds (tenant, connector, type, hold, detail, until, since)
 VALUES ($1, $2, $3, $4, $5, CAST($6 AS BIGINT), $7)
 ON CONFLICT (tenant, connector, type) DO UPDATE SET hold = excluded.hold, detail = excluded.detail, until = excluded.until,
 since = CASE WHEN connector_holds.hold = excluded.hold AND (connector_holds.until IS NULL OR connector_holds.until > excluded.since)
  THEN connector_holds.since ELSE excluded.since END
 WHERE connector_holds.until IS NOT NULL OR excluded.until IS NULL RETURNING since`,
		h.Tenant, h.Connector, h.Type, string(h.Hold), h.Detail, until, m.now.UnixMicro()).Scan(&since)
	if errors.Is(err, sql.ErrNoRows) || err == nil && since != m.now.UnixMicro() {
		return nil
	}
	if err != nil {
		return err
	}
	data := map[string]any{"connector": h.Connector, "hold": h.Hold}
	if h.Type != "" {
		data["type"] = h.Type
	}
	if !h.Until.IsZero() {
		data["until"] = h.Until
	}
	m.note("connector.held", h.Tenant, "", data, nil)
	return nil
}

// ReleaseConnector implements store.Outbox.
func (s *Store) ReleaseConnector(ctx context.Context, tenant, connector, version string, who holdpoint.Who) (int, error) {
	n, err := s.rehold(ctx, "release connector", who, "effect.released", holdpoint.HoldNone, func(m *mover, n int) error {
		if _, err := m.ExecContext(ctx, "DELETE FROM connector_holds WHERE tenant = $1 AND connector = $2", tenant, connector); err != nil {
			return err
		}
		m.note("connector.released", tenant, "", map[string]any{"connector": connector, "version": version, "effects": n}, nil)
		m.notify("effects")
		return nil
	}, `tenant = $1 AND connector = $2 AND connector_version = $3 AND state = 'pending'
 AND hold IN ('credentials', 'permission', 'quota', 'configuration')`, []any{tenant, connector, version},
		func(holdpoint.Effect) bool { return true })
	if err == nil {
		s.hint("effects")
	}
	return n, err
}

// ConnectorHolds implements store.Outbox. A hold whose time has passed is listed no more.
func (s *Store) ConnectorHolds(ctx context.Context, tenant string) ([]store.ConnectorHold, error) {
	rows, err := s.read.QueryContext(ctx, s.expand(`SELECT tenant, connector, type, hold, detail, until, since FROM connector_holds
 WHERE tenant = $2 AND (until IS NULL OR until > {{now}}) ORDER BY connector, type`), s.clock(), tenant)
	all, err := collect(rows, err, func(row scanner) (store.ConnectorHold, error) {
		var h store.ConnectorHold
		var until sql.NullInt64
		var since int64
		err := row.Scan(&h.Tenant, &h.Connector, &h.Type, &h.Hold, &h.Detail, &until, &since)
		if until.Valid {
			h.Until = instant(until.Int64)
		}
		h.Since = instant(since)
		return h, err
	})
	if err != nil {
		return nil, unavailable("list connector holds", err)
	}
	return all, nil
}

// PutProof implements store.Outbox.
func (s *Store) PutProof(ctx context.Context, p store.Proof) error {
	return s.do(ctx, "put proof", func(t *tx) error {
		_, err := t.ExecContext(ctx, `INSERT INTO proofs (tenant, connector, version, key_life_us, proved_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6)
 ON CONFLICT (tenant, connector, version) DO UPDATE SET key_life_us = excluded.key_life_us, proved_at = excluded.proved_at, expires_at = excluded.expires_at`,
			p.Tenant, p.Connector, p.Version, micros(p.KeyLife), p.ProvedAt.UnixMicro(), p.ExpiresAt.UnixMicro())
		return err
	})
}

// Proof implements store.Outbox. A proof that has expired is none.
func (s *Store) Proof(ctx context.Context, tenant, connector, version string) (*store.Proof, error) {
	p := store.Proof{Tenant: tenant, Connector: connector, Version: version}
	var life, proved, expires int64
	err := s.read.QueryRowContext(ctx, s.expand(`SELECT key_life_us, proved_at, expires_at FROM proofs
 WHERE tenant = $2 AND connector = $3 AND version = $4 AND expires_at > {{now}}`), s.clock(), tenant, connector, version).Scan(&life, &proved, &expires)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, unavailable("read proof", err)
	}
	p.KeyLife, p.ProvedAt, p.ExpiresAt = time.Duration(life)*time.Microsecond, instant(proved), instant(expires)
	return &p, nil
}

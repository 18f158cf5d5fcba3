package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// The scopes that are one word; the others are workflow:NAME, connector:NAME and type:NAME.
const (
	scopeGlobal   = "global"
	scopeTenant   = "tenant"
	scopeMessages = "messages"
)

// switchboard is the state of the stored switches, read under the lock that a flip must take.
type switchboard map[[2]string]bool

// allow reports whether an effect may begin: global and tenant are on, and no narrower scope is off (R4.8).
func (b switchboard) allow(e holdpoint.Effect) bool {
	if !b[[2]string{"", scopeGlobal}] || !b[[2]string{e.Tenant, scopeTenant}] {
		return false
	}
	for _, scope := range []string{"workflow:" + e.Workflow, "connector:" + e.Connector, "type:" + e.Type} {
		if on, stored := b[[2]string{e.Tenant, scope}]; stored && !on {
			return false
		}
	}
	return true
}

// shareSwitches reads the switches that concern some tenants and keeps every flip out until the transaction ends. The
// lock is that of the table and not of rows: requests for it queue up, so that a stream of begins cannot starve a flip,
// and a scope without a row is locked too. SQLite has one writer, which is the same.
func (t *tx) shareSwitches(ctx context.Context, tenants map[string]bool) (switchboard, error) {
	if t.s.postgres {
		if _, err := t.ExecContext(ctx, "LOCK TABLE switches IN ROW SHARE MODE"); err != nil {
			return nil, err
		}
	}
	names := []any{}
	for tenant := range tenants {
		names = append(names, tenant)
	}
	rows, err := t.QueryContext(ctx, "SELECT tenant, scope, is_on FROM switches WHERE tenant = '' OR tenant IN (VALUES "+tuples(len(names), 1, 1)+")", names...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	board := switchboard{}
	for rows.Next() {
		var tenant, scope string
		var on int64
		if err := rows.Scan(&tenant, &scope, &on); err != nil {
			return nil, err
		}
		board[[2]string{tenant, scope}] = on == 1
	}
	return board, rows.Err()
}

// SetSwitch implements store.Switches.
func (s *Store) SetSwitch(ctx context.Context, c store.SwitchChange) (holdpoint.Switch, []holdpoint.Attempt, error) {
	kind, name, narrow := strings.Cut(c.Scope, ":")
	switch {
	case !narrow && (c.Scope == scopeGlobal || c.Scope == scopeTenant || c.Scope == scopeMessages):
	case narrow && name != "" && (kind == "workflow" || kind == "connector" || kind == "type"):
	default:
		return holdpoint.Switch{}, nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest,
			"a switch has the scope global, tenant, messages, workflow:NAME, connector:NAME or type:NAME")
	}
	sw := holdpoint.Switch{Tenant: c.Tenant, Scope: c.Scope, On: c.On, ChangedBy: c.Who.ID}
	if c.Scope == scopeGlobal {
		sw.Tenant = ""
	}
	var inFlight []holdpoint.Attempt
	err := s.do(ctx, "set switch", func(t *tx) error {
		// Conflicts with the lock of shareSwitches: begun attempts have committed and are in the list below, and none
		// can begin until this flip has committed.
		if s.postgres {
			if _, err := t.ExecContext(ctx, "LOCK TABLE switches IN EXCLUSIVE MODE"); err != nil {
				return err
			}
		}
		var known int
		if err := t.QueryRowContext(ctx, "SELECT 1 FROM tenants WHERE tenant = $1", c.Tenant).Scan(&known); errors.Is(err, sql.ErrNoRows) {
			return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no tenant %s", c.Tenant)
		} else if err != nil {
			return err
		}
		now, err := t.now(ctx)
		if err != nil {
			return err
		}
		sw.ChangedAt = now
		if _, err := t.ExecContext(ctx, `INSERT INTO switches (tenant, scope, is_on, changed_by, changed_at) VALUES ($1, $2, $3, $4, $5)
 ON CONFLICT (tenant, scope) DO UPDATE SET is_on = excluded.is_on, changed_by = excluded.changed_by, changed_at = excluded.changed_at`,
			sw.Tenant, sw.Scope, bit(sw.On), sw.ChangedBy, now.UnixMicro()); err != nil {
			return err
		}
		if inFlight, err = t.inFlight(ctx, sw.Tenant); err != nil {
			return err
		}
		if err := t.record(ctx, now, event{tenant: c.Tenant, kind: "switch.changed", who: c.Who, content: c.ReasonText,
			data: map[string]any{"scope": c.Scope, "on": c.On, "in_flight": len(inFlight)}}); err != nil {
			return err
		}
		t.notify(wakes(c.Scope))
		return nil
	})
	if err != nil {
		return holdpoint.Switch{}, nil, err
	}
	s.hint(wakes(c.Scope))
	return sw, inFlight, nil
}

// wakes names the loop that a flip of a scope concerns.
func wakes(scope string) string {
	if scope == scopeMessages {
		return "messages"
	}
	return "effects"
}

// inFlight lists attempts begun and not settled: those of one tenant, or of all for "".
func (t *tx) inFlight(ctx context.Context, tenant string) ([]holdpoint.Attempt, error) {
	rows, err := t.QueryContext(ctx, inFlightQuery, tenant)
	return collect(rows, err, func(row scanner) (holdpoint.Attempt, error) { return scanAttempt(row) })
}

const inFlightQuery = "SELECT " + attemptColumns + " FROM attempts WHERE settled_at IS NULL AND (tenant = $1 OR $1 = '') ORDER BY begun_at, id"

// Switches implements store.Switches.
func (s *Store) Switches(ctx context.Context, tenant string) ([]holdpoint.Switch, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT tenant, scope, is_on, changed_by, changed_at FROM switches WHERE tenant = '' OR tenant = $1 ORDER BY tenant, scope", tenant)
	all, err := collect(rows, err, func(row scanner) (holdpoint.Switch, error) {
		var sw holdpoint.Switch
		var on, at int64
		err := row.Scan(&sw.Tenant, &sw.Scope, &on, &sw.ChangedBy, &at)
		sw.On, sw.ChangedAt = on == 1, instant(at)
		return sw, err
	})
	if err != nil {
		return nil, unavailable("list switches", err)
	}
	return all, nil
}

// InFlight implements store.Switches.
func (s *Store) InFlight(ctx context.Context, tenant string) ([]holdpoint.Attempt, error) {
	rows, err := s.read.QueryContext(ctx, inFlightQuery, tenant)
	all, err := collect(rows, err, func(row scanner) (holdpoint.Attempt, error) { return scanAttempt(row) })
	if err != nil {
		return nil, unavailable("list attempts in flight", err)
	}
	return all, nil
}

package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

func noTenant(name string) error {
	return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no tenant %s; list the tenants", name)
}

func noPolicy(hash string) error {
	return holdpoint.Errorf(holdpoint.CodeNotFound, "policy %s is not stored in this tenant; store it first", hash)
}

const tenantColumns = "tenant, effect_key, index_key, active_policy, created_at"

func scanTenant(row scanner) (store.Tenant, error) {
	var t store.Tenant
	var created int64
	err := row.Scan(&t.Name, &t.EffectKey, &t.IndexKey, &t.ActivePolicy, &created)
	t.CreatedAt = instant(created)
	return t, err
}

// CreateTenant implements store.Policies. The tenant starts without a policy; only ActivatePolicy gives it one.
func (s *Store) CreateTenant(ctx context.Context, n store.Tenant, who holdpoint.Who) error {
	return s.do(ctx, "create tenant", func(t *tx) error {
		now, err := t.now(ctx)
		if err != nil {
			return err
		}
		// Of two creations of one name the second waits here and then changes nothing.
		res, err := t.ExecContext(ctx, "INSERT INTO tenants (tenant, effect_key, index_key, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
			n.Name, n.EffectKey, n.IndexKey, now.UnixMicro())
		if err := oneRow(res, err, holdpoint.Errorf(holdpoint.CodeExists, "there is a tenant %s already; choose another name", n.Name)); err != nil {
			return err
		}
		// A begin of an attempt locks these two rows, so they must be there before the first run. A switch that stands
		// is left alone: another tenant must not turn the instance off, or on.
		if _, err := t.ExecContext(ctx, `INSERT INTO switches (tenant, scope, is_on, changed_by, changed_at)
 VALUES ('', 'global', 0, $2, $3), ($1, 'tenant', 0, $2, $3) ON CONFLICT DO NOTHING`, n.Name, who.ID, now.UnixMicro()); err != nil {
			return err
		}
		return t.record(ctx, now, event{tenant: n.Name, kind: "tenant.created", who: who})
	})
}

// TenantByName implements store.Policies; not_found.
func (s *Store) TenantByName(ctx context.Context, tenant string) (store.Tenant, error) {
	t, err := scanTenant(s.read.QueryRowContext(ctx, "SELECT "+tenantColumns+" FROM tenants WHERE tenant = $1", tenant))
	return t, readErr("tenant by name", err, noTenant(tenant))
}

// ListTenants implements store.Policies, in order of name.
func (s *Store) ListTenants(ctx context.Context) ([]store.Tenant, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT "+tenantColumns+" FROM tenants ORDER BY tenant")
	tenants, err := collect(rows, err, scanTenant)
	return tenants, readErr("list tenants", err, nil)
}

const policyColumns = "tenant, hash, document, files, created_at, created_by"

func scanPolicy(row scanner) (store.PolicyRow, error) {
	var p store.PolicyRow
	var files string
	var created int64
	if err := row.Scan(&p.Tenant, &p.Hash, &p.Document, &files, &created, &p.CreatedBy); err != nil {
		return p, err
	}
	p.CreatedAt = instant(created)
	if err := json.Unmarshal([]byte(files), &p.Files); err != nil {
		return p, fmt.Errorf("policy %s: files: %w", p.Hash, err)
	}
	return p, nil
}

// PutPolicy implements store.Policies; not_found if there is no such tenant. Author and time are those of the first
// call; storing the same again leaves no event.
func (s *Store) PutPolicy(ctx context.Context, p store.PolicyRow, who holdpoint.Who) error {
	return s.do(ctx, "store policy", func(t *tx) error {
		now, err := t.lockTenant(ctx, p.Tenant)
		if err != nil {
			return err
		}
		res, err := t.ExecContext(ctx, "INSERT INTO policies ("+policyColumns+") VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
			p.Tenant, p.Hash, p.Document, text(p.Files), now.UnixMicro(), who.ID)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err
		}
		return t.record(ctx, now, event{tenant: p.Tenant, kind: "policy.stored", who: who, data: map[string]any{"hash": p.Hash}})
	})
}

// PolicyByHash implements store.Policies; not_found.
func (s *Store) PolicyByHash(ctx context.Context, tenant, hash string) (store.PolicyRow, error) {
	p, err := scanPolicy(s.read.QueryRowContext(ctx, "SELECT "+policyColumns+" FROM policies WHERE tenant = $1 AND hash = $2", tenant, hash))
	return p, readErr("policy by hash", err, noPolicy(hash))
}

// ListPolicies implements store.Policies, newest first.
func (s *Store) ListPolicies(ctx context.Context, tenant string) ([]store.PolicyRow, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT "+policyColumns+" FROM policies WHERE tenant = $1 ORDER BY created_at DESC, hash", tenant)
	policies, err := collect(rows, err, scanPolicy)
	return policies, readErr("list policies", err, nil)
}

// ActivatePolicy implements store.Policies; not_found if the tenant or the hash is not stored.
func (s *Store) ActivatePolicy(ctx context.Context, tenant, hash, expected string, who holdpoint.Who) error {
	err := s.do(ctx, "activate policy", func(t *tx) error {
		now, err := t.lockTenant(ctx, tenant)
		if err != nil {
			return err
		}
		var stored int64
		err = t.QueryRowContext(ctx, "SELECT 1 FROM policies WHERE tenant = $1 AND hash = $2", tenant, hash).Scan(&stored)
		if errors.Is(err, sql.ErrNoRows) {
			return noPolicy(hash)
		}
		if err != nil {
			return err
		}
		var active string
		if err := t.QueryRowContext(ctx, "SELECT active_policy FROM tenants WHERE tenant = $1", tenant).Scan(&active); err != nil {
			return err
		}
		// Compare-and-set: of simultaneous activations that expect the same policy one wins, the others learn what is
		// active now.
		res, err := t.ExecContext(ctx, "UPDATE tenants SET active_policy = $2 WHERE tenant = $1 AND active_policy = $3", tenant, hash, expected)
		if err := oneRow(res, err, holdpoint.Errorf(holdpoint.CodePolicyMoved, "another policy is active now; compare yours with it, then activate again expecting it").
			With("active", active)); err != nil {
			return err
		}
		if err := t.record(ctx, now, event{tenant: tenant, kind: "policy.activated", who: who, data: map[string]any{"from": expected, "to": hash}}); err != nil {
			return err
		}
		t.notify("policy")
		return nil
	})
	if err == nil {
		s.hint("policy")
	}
	return err
}

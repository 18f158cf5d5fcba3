package storetest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

func (m *model) ConnectorHolds(_ context.Context, tenant string) (all []store.ConnectorHold, _ error) {
	for _, h := range m.stopped {
		if h.Tenant == tenant && m.stands(h) {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, byHold)
	return all, nil
}

// byHold is the order of connector holds.
func byHold(a, b store.ConnectorHold) int {
	return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Connector, b.Connector), strings.Compare(a.Type, b.Type))
}

func (m *model) PutProof(_ context.Context, p store.Proof) error {
	m.proofs[[3]string{p.Tenant, p.Connector, p.Version}] = p
	return nil
}

func (m *model) Proof(_ context.Context, tenant, connector, version string) (*store.Proof, error) {
	if p, ok := m.proofs[[3]string{tenant, connector, version}]; ok && !m.past(p.ExpiresAt) {
		return &p, nil
	}
	return nil, nil
}

func (m *model) SetSwitch(ctx context.Context, c store.SwitchChange) (holdpoint.Switch, []holdpoint.Attempt, error) {
	kind, name, narrow := strings.Cut(c.Scope, ":")
	if narrow && (name == "" || !slices.Contains([]string{"workflow", "connector", "type"}, kind)) ||
		!narrow && !slices.Contains([]string{"global", "tenant", "messages"}, c.Scope) {
		return holdpoint.Switch{}, nil, refused(holdpoint.CodeInvalidRequest)
	}
	t := m.tenants[c.Tenant]
	if t == nil {
		return holdpoint.Switch{}, nil, refused(holdpoint.CodeNotFound)
	}
	sw := holdpoint.Switch{Tenant: c.Tenant, Scope: c.Scope, On: c.On, ChangedBy: c.Who.ID, ChangedAt: m.clock()}
	if c.Scope == "global" {
		sw.Tenant = ""
	}
	m.switches[modelRef{sw.Tenant, sw.Scope}] = sw
	m.tellTenant(t, "switch.changed")
	flying, err := m.InFlight(ctx, sw.Tenant)
	return sw, flying, err
}

func (m *model) Switches(_ context.Context, tenant string) (all []holdpoint.Switch, _ error) {
	for _, sw := range m.switches {
		if sw.Tenant == "" || sw.Tenant == tenant {
			all = append(all, sw)
		}
	}
	slices.SortFunc(all, bySwitch)
	return all, nil
}

// bySwitch is the order of switches: global first.
func bySwitch(a, b holdpoint.Switch) int {
	return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Scope, b.Scope))
}

func (m *model) InFlight(_ context.Context, tenant string) (all []holdpoint.Attempt, _ error) {
	for _, r := range m.sorted(tenant) {
		for _, a := range r.Attempts {
			if a.SettledAt == nil {
				all = append(all, a)
			}
		}
	}
	slices.SortFunc(all, byBegin)
	return all, nil
}

// byBegin is the order of attempts.
func byBegin(a, b holdpoint.Attempt) int {
	return cmp.Or(a.BegunAt.Compare(b.BegunAt), strings.Compare(a.ID, b.ID))
}

type modelMessage struct {
	store.Message
	next   time.Time
	owner  string
	leased time.Time // until
}

func (m *model) AddMessages(_ context.Context, messages []store.Message) error {
	for _, msg := range messages {
		if m.message(msg.Tenant, msg.ID) != nil {
			return refused(holdpoint.CodeExists)
		}
	}
	m.queue(messages)
	return nil
}

func (m *model) message(tenant, id string) *modelMessage {
	for _, msg := range m.messages {
		if msg.Tenant == tenant && msg.ID == id {
			return msg
		}
	}
	return nil
}

func (m *model) LeaseMessages(_ context.Context, owner string, lease time.Duration, limit int) (all []store.Message, _ error) {
	due := slices.DeleteFunc(slices.Clone(m.messages), func(msg *modelMessage) bool {
		sw, stored := m.switches[modelRef{msg.Tenant, "messages"}]
		return msg.State != "pending" || !m.past(msg.next) || msg.owner != "" && !m.past(msg.leased) || stored && !sw.On
	})
	slices.SortFunc(due, func(a, b *modelMessage) int {
		return cmp.Or(a.next.Compare(b.next), strings.Compare(a.ID, b.ID), strings.Compare(a.Tenant, b.Tenant))
	})
	for _, msg := range due[:min(limit, len(due))] {
		msg.owner, msg.leased = owner, m.clock().Add(lease)
		msg.Attempts++
		out := msg.Message
		out.Policy = m.tenants[msg.Tenant].ActivePolicy
		all = append(all, out)
	}
	return all, nil
}

func (m *model) SettleMessage(_ context.Context, owner, id, tenant, state, detail string, delay time.Duration) error {
	if !slices.Contains([]string{"delivered", "dropped", "failed", "pending"}, state) {
		return refused(holdpoint.CodeInternal)
	}
	msg := m.message(tenant, id)
	if msg == nil || msg.State != "pending" || msg.owner != owner || owner == "" {
		return refused(holdpoint.CodeLeaseLost)
	}
	msg.State, msg.Detail, msg.next, msg.owner = state, detail, m.clock().Add(delay), ""
	if state == "delivered" {
		msg.DeliveredAt = new(m.clock())
	}
	return nil
}

// tenant finds a tenant; not_found.
func (m *model) tenant(name string) (*modelTenant, error) {
	if t := m.tenants[name]; t != nil {
		return t, nil
	}
	return nil, refused(holdpoint.CodeNotFound)
}

func (m *model) CreateTenant(_ context.Context, n store.Tenant, who holdpoint.Who) error {
	if m.tenants[n.Name] != nil {
		return refused(holdpoint.CodeExists)
	}
	n.ActivePolicy, n.CreatedAt = "", m.clock()
	t := &modelTenant{Tenant: n, people: map[string]*holdpoint.Person{}}
	m.tenants[n.Name] = t
	for _, ref := range []modelRef{{"", "global"}, {n.Name, "tenant"}} {
		if _, stored := m.switches[ref]; !stored {
			m.switches[ref] = holdpoint.Switch{Tenant: ref.tenant, Scope: ref.id, ChangedBy: who.ID, ChangedAt: m.clock()}
		}
	}
	m.tellTenant(t, "tenant.created")
	return nil
}

func (m *model) TenantByName(_ context.Context, name string) (store.Tenant, error) {
	t, err := m.tenant(name)
	if err != nil {
		return store.Tenant{}, err
	}
	return t.Tenant, nil
}

func (m *model) ListTenants(context.Context) (all []store.Tenant, _ error) {
	for _, name := range slices.Sorted(maps.Keys(m.tenants)) {
		all = append(all, m.tenants[name].Tenant)
	}
	return all, nil
}

func (m *model) PutPolicy(ctx context.Context, p store.PolicyRow, who holdpoint.Who) error {
	t, err := m.tenant(p.Tenant)
	if err != nil {
		return err
	}
	if _, err := m.PolicyByHash(ctx, p.Tenant, p.Hash); err == nil {
		return nil
	}
	p.CreatedAt, p.CreatedBy = m.clock(), who.ID
	t.policies = append(t.policies, p)
	m.tellTenant(t, "policy.stored")
	return nil
}

func (m *model) PolicyByHash(_ context.Context, tenant, hash string) (store.PolicyRow, error) {
	if t := m.tenants[tenant]; t != nil {
		for _, p := range t.policies {
			if p.Hash == hash {
				return p, nil
			}
		}
	}
	return store.PolicyRow{}, refused(holdpoint.CodeNotFound)
}

func (m *model) ListPolicies(_ context.Context, tenant string) (all []store.PolicyRow, _ error) {
	if t := m.tenants[tenant]; t != nil {
		all = slices.Clone(t.policies)
		slices.Reverse(all) // newest first
	}
	return all, nil
}

func (m *model) ActivatePolicy(ctx context.Context, tenant, hash, expected string, _ holdpoint.Who) error {
	if _, err := m.PolicyByHash(ctx, tenant, hash); err != nil {
		return err
	}
	t := m.tenants[tenant]
	if t.ActivePolicy != expected {
		return refused(holdpoint.CodePolicyMoved)
	}
	t.ActivePolicy = hash
	m.tellTenant(t, "policy.activated")
	return nil
}

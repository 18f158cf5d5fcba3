package storetest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
)

// person finds a person and the tenant; not_found.
func (m *model) person(tenant, id string) (*modelTenant, *holdpoint.Person, error) {
	if t := m.tenants[tenant]; t != nil && t.people[id] != nil {
		return t, t.people[id], nil
	}
	return nil, nil, refused(holdpoint.CodeNotFound)
}

func (m *model) CreatePerson(ctx context.Context, p holdpoint.Person, _ holdpoint.Who) error {
	t, err := m.tenant(p.Tenant)
	if err != nil {
		return err
	}
	p.Email, p.CreatedAt = strings.ToLower(p.Email), m.clock()
	if _, err := m.PersonByEmail(ctx, p.Tenant, p.Email); err == nil || t.people[p.ID] != nil {
		return refused(holdpoint.CodeExists)
	}
	p.GrantedRoles = slices.Compact(slices.Sorted(slices.Values(p.GrantedRoles)))
	t.people[p.ID] = &p
	m.tellTenant(t, "person.created")
	for range p.GrantedRoles {
		m.tellTenant(t, "role.granted")
	}
	return nil
}

func (m *model) PersonByEmail(_ context.Context, tenant, email string) (holdpoint.Person, error) {
	if t := m.tenants[tenant]; t != nil {
		for _, p := range t.people {
			if p.Email == strings.ToLower(email) {
				return *p, nil
			}
		}
	}
	return holdpoint.Person{}, refused(holdpoint.CodeNotFound)
}

func (m *model) PersonByID(_ context.Context, tenant, id string) (holdpoint.Person, error) {
	_, p, err := m.person(tenant, id)
	if err != nil {
		return holdpoint.Person{}, err
	}
	return *p, nil
}

func (m *model) ListPeople(_ context.Context, tenant string) (all []holdpoint.Person, _ error) {
	if t := m.tenants[tenant]; t != nil {
		for _, p := range t.people {
			all = append(all, *p)
		}
	}
	slices.SortFunc(all, func(a, b holdpoint.Person) int { return strings.Compare(a.Email, b.Email) })
	return all, nil
}

// endSessions ends all sessions of a person.
func (m *model) endSessions(tenant, id string) {
	for hash, s := range m.sessions {
		if s.tenant == tenant && s.person == id {
			delete(m.sessions, hash)
		}
	}
}

func (m *model) SetPassword(_ context.Context, tenant, id, phc string, mustChange bool, _ holdpoint.Who) error {
	t, p, err := m.person(tenant, id)
	if err != nil {
		return err
	}
	p.Password, p.MustChange = phc, mustChange
	m.endSessions(tenant, id)
	m.tellTenant(t, "person.password_changed")
	return nil
}

func (m *model) SetDisabled(_ context.Context, tenant, id string, disabled bool, _ holdpoint.Who) error {
	t, p, err := m.person(tenant, id)
	if err != nil || p.Disabled == disabled {
		return err
	}
	if p.Disabled = disabled; !disabled {
		m.tellTenant(t, "person.enabled")
		return nil
	}
	m.endSessions(tenant, id)
	for _, k := range m.keys {
		if k.Tenant == tenant && k.PersonID == id && k.RevokedAt == nil {
			k.RevokedAt = new(m.clock())
		}
	}
	m.tellTenant(t, "person.disabled")
	return nil
}

func (m *model) SetLanguage(_ context.Context, tenant, id, language string) error {
	_, p, err := m.person(tenant, id)
	if err == nil {
		p.Language = language
	}
	return err
}

func (m *model) GrantRole(_ context.Context, tenant, id, role string, _ holdpoint.Who) error {
	t, p, err := m.person(tenant, id)
	if err != nil || slices.Contains(p.GrantedRoles, role) {
		return err
	}
	p.GrantedRoles = slices.Sorted(slices.Values(append(slices.Clone(p.GrantedRoles), role)))
	m.tellTenant(t, "role.granted")
	return nil
}

func (m *model) RevokeRole(_ context.Context, tenant, id, role string, _ holdpoint.Who) error {
	t, p, err := m.person(tenant, id)
	if err != nil || !slices.Contains(p.GrantedRoles, role) {
		return refused(holdpoint.CodeNotFound)
	}
	p.GrantedRoles = slices.DeleteFunc(slices.Clone(p.GrantedRoles), func(r string) bool { return r == role })
	m.tellTenant(t, "role.revoked")
	return nil
}

// enabled finds a person who may log in; not_found.
func (m *model) enabled(tenant, id string) (*modelTenant, *holdpoint.Person, error) {
	t, p, err := m.person(tenant, id)
	if err == nil && p.Disabled {
		err = refused(holdpoint.CodeNotFound)
	}
	return t, p, err
}

func (m *model) CreateKey(_ context.Context, k holdpoint.Key, hash string, _ holdpoint.Who) error {
	if (k.Kind == "person") != (k.PersonID != "") {
		return refused(holdpoint.CodeInvalidRequest)
	}
	t, err := m.tenant(k.Tenant)
	if err == nil && k.PersonID != "" {
		_, _, err = m.enabled(k.Tenant, k.PersonID)
	}
	if err != nil {
		return err
	}
	if _, old := m.key(k.Tenant, k.ID); old != nil || m.keys[hash] != nil {
		return refused(holdpoint.CodeExists)
	}
	k.CreatedAt, k.LastUsedAt, k.RevokedAt = m.clock(), nil, nil
	m.keys[hash] = &k
	m.tellTenant(t, "key.created")
	return nil
}

// key finds a key by its id.
func (m *model) key(tenant, id string) (hash string, k *holdpoint.Key) {
	for hash, k := range m.keys {
		if k.Tenant == tenant && k.ID == id {
			return hash, k
		}
	}
	return "", nil
}

func (m *model) KeyByHash(_ context.Context, hash string) (holdpoint.Key, *holdpoint.Person, error) {
	k := m.keys[hash]
	if k == nil || k.RevokedAt != nil {
		return holdpoint.Key{}, nil, refused(holdpoint.CodeNotFound)
	}
	answer := *k
	var owner *holdpoint.Person
	if k.PersonID != "" {
		_, p, err := m.enabled(k.Tenant, k.PersonID)
		if err != nil {
			return holdpoint.Key{}, nil, err
		}
		owner = new(*p)
	}
	if k.LastUsedAt == nil || m.past(k.LastUsedAt.Add(time.Minute)) {
		k.LastUsedAt = new(m.clock())
	}
	return answer, owner, nil
}

func (m *model) ListKeys(_ context.Context, tenant string) (all []holdpoint.Key, _ error) {
	for _, k := range m.keys {
		if k.Tenant == tenant {
			all = append(all, *k)
		}
	}
	slices.SortFunc(all, func(a, b holdpoint.Key) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return all, nil
}

func (m *model) RevokeKey(_ context.Context, tenant, id string, _ holdpoint.Who) error {
	_, k := m.key(tenant, id)
	if k == nil {
		return refused(holdpoint.CodeNotFound)
	}
	if k.RevokedAt == nil {
		k.RevokedAt = new(m.clock())
		m.tellTenant(m.tenants[tenant], "key.revoked")
	}
	return nil
}

// modelSession is a session of a person.
type modelSession struct {
	tenant, person string
	seen, ends     time.Time
	idle           time.Duration
}

// over reports whether a session has ended by one of its limits.
func (m *model) over(s *modelSession) bool { return m.past(s.ends) || m.past(s.seen.Add(s.idle)) }

func (m *model) CreateSession(_ context.Context, tenant, person, hash string, idle, absolute time.Duration, _ holdpoint.Who) error {
	t, _, err := m.enabled(tenant, person)
	if err != nil {
		return err
	}
	gone := func(s *modelSession) bool { return s.tenant == tenant && s.person == person && m.over(s) }
	if s := m.sessions[hash]; s != nil && !gone(s) {
		return refused(holdpoint.CodeExists)
	}
	maps.DeleteFunc(m.sessions, func(_ string, s *modelSession) bool { return gone(s) })
	m.sessions[hash] = &modelSession{tenant: tenant, person: person, seen: m.clock(), ends: m.clock().Add(absolute), idle: idle}
	m.tellTenant(t, "session.created")
	return nil
}

func (m *model) SessionByHash(_ context.Context, hash string) (holdpoint.Person, error) {
	s := m.sessions[hash]
	if s == nil || m.over(s) {
		return holdpoint.Person{}, refused(holdpoint.CodeNotFound)
	}
	_, p, err := m.enabled(s.tenant, s.person)
	if err != nil {
		return holdpoint.Person{}, err
	}
	if m.past(s.seen.Add(time.Minute)) {
		s.seen = m.clock()
	}
	return *p, nil
}

func (m *model) EndSession(_ context.Context, hash string) error {
	delete(m.sessions, hash)
	return nil
}

package storetest

import (
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// somePerson draws the id of a person, who may not be there.
func (w *twin) somePerson() string {
	return pick(w, "person", jane.ID, joe.ID, "person-ann", "person-none")
}

func actCreatePerson(w *twin) {
	p := holdpoint.Person{ID: w.somePerson(), Tenant: pick(w, "tenant", append(modelTenants, modelTenants[0], "nobody")...), Email: pick(w, "email", "Jane@acme.example", "joe@acme.example", "ann@acme.example"),
		Password: "phc", MustChange: pick(w, "must change", false, true), Language: "en", GrantedRoles: pick(w, "roles", nil, []string{"operator", "auditor"}, []string{"approver", "approver"})}
	w.create(p)
}

func (w *twin) create(p holdpoint.Person) {
	_, _ = ask(w, "CreatePerson", func(s store.Store) (none, error) { return none{}, s.CreatePerson(w.ctx, p, admin) })
}

func actPersonByEmail(w *twin) {
	tenant, email := w.tenant(), pick(w, "email", "JANE@acme.example", "joe@acme.example", "nobody@acme.example")
	_, _ = ask(w, "PersonByEmail", func(s store.Store) (holdpoint.Person, error) { return s.PersonByEmail(w.ctx, tenant, email) })
}

func actPersonByID(w *twin) {
	tenant, id := w.tenant(), w.somePerson()
	_, _ = ask(w, "PersonByID", func(s store.Store) (holdpoint.Person, error) { return s.PersonByID(w.ctx, tenant, id) })
}

func actSetPassword(w *twin) {
	tenant, id, must := w.tenant(), w.somePerson(), pick(w, "must change", false, true)
	_, _ = ask(w, "SetPassword", func(s store.Store) (none, error) {
		return none{}, s.SetPassword(w.ctx, tenant, id, "phc-2", must, admin)
	})
}

func actSetDisabled(w *twin) {
	tenant, id, disabled := w.tenant(), w.somePerson(), pick(w, "disabled", false, true)
	_, _ = ask(w, "SetDisabled", func(s store.Store) (none, error) { return none{}, s.SetDisabled(w.ctx, tenant, id, disabled, admin) })
}

func actSetLanguage(w *twin) {
	tenant, id, language := w.tenant(), w.somePerson(), pick(w, "language", "de", "en")
	_, _ = ask(w, "SetLanguage", func(s store.Store) (none, error) { return none{}, s.SetLanguage(w.ctx, tenant, id, language) })
}

func actGrantRole(w *twin) {
	tenant, id, role := w.tenant(), w.somePerson(), pick(w, "role", "operator", "approver")
	_, _ = ask(w, "GrantRole", func(s store.Store) (none, error) { return none{}, s.GrantRole(w.ctx, tenant, id, role, admin) })
}

func actRevokeRole(w *twin) {
	tenant, id, role := w.tenant(), w.somePerson(), pick(w, "role", "operator", "approver")
	_, _ = ask(w, "RevokeRole", func(s store.Store) (none, error) { return none{}, s.RevokeRole(w.ctx, tenant, id, role, admin) })
}

func actCreateKey(w *twin) {
	k := holdpoint.Key{ID: pick(w, "key", w.id("key"), "key-1"), Tenant: pick(w, "tenant", append(modelTenants, modelTenants[0], "nobody")...), Kind: pick(w, "kind", "person", "machine"), Name: "laptop",
		Scopes: []holdpoint.Scope{holdpoint.ScopeRead}}
	if (k.Kind == "person") != w.seldom("wrong kind", 8) {
		k.PersonID = w.somePerson()
	}
	hash := pick(w, "token", "h1", "h2", "h3", "h4")
	_, _ = ask(w, "CreateKey", func(s store.Store) (none, error) { return none{}, s.CreateKey(w.ctx, k, hash, admin) })
}

func actKeyByHash(w *twin) {
	hash := pick(w, "token", "h1", "h2", "h3", "h4")
	_, _ = ask(w, "KeyByHash", func(s store.Store) (pair[holdpoint.Key, *holdpoint.Person], error) {
		return two(s.KeyByHash(w.ctx, hash))
	})
}

func actRevokeKey(w *twin) {
	tenant, ids := w.tenant(), []string{"key-none"}
	for _, k := range w.model.keys {
		ids = append(ids, k.ID)
	}
	id := pick(w, "key", sortedIDs(ids)...)
	_, _ = ask(w, "RevokeKey", func(s store.Store) (none, error) { return none{}, s.RevokeKey(w.ctx, tenant, id, admin) })
}

func actCreateSession(w *twin) {
	tenant, id, hash := w.tenant(), w.somePerson(), pick(w, "token", "s1", "s2", "s3")
	idle, absolute := pick(w, "idle", 5*time.Minute, 30*time.Second), pick(w, "absolute", time.Hour, 10*time.Minute)
	_, _ = ask(w, "CreateSession", func(s store.Store) (none, error) {
		return none{}, s.CreateSession(w.ctx, tenant, id, hash, idle, absolute, admin)
	})
}

func actSessionByHash(w *twin) {
	hash := pick(w, "token", "s1", "s2", "s3")
	_, _ = ask(w, "SessionByHash", func(s store.Store) (holdpoint.Person, error) { return s.SessionByHash(w.ctx, hash) })
}

func actEndSession(w *twin) {
	hash := pick(w, "token", "s1", "s2", "s3")
	_, _ = ask(w, "EndSession", func(s store.Store) (none, error) { return none{}, s.EndSession(w.ctx, hash) })
}

// actTick lets a little time pass, so that sessions live to be used.
func actTick(w *twin) {
	w.advance(pick(w, "time", 10*time.Second, time.Minute, 4*time.Minute))
	_, _ = ask(w, "Now", func(s store.Store) (time.Time, error) { return s.Now(w.ctx) })
}

package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
)

// roleSeparator stands between the roles of personColumns; a role's name has no line break.
const roleSeparator = "\n"

const personColumns = "people.id, people.tenant, people.email, people.password, people.must_change, people.disabled, people.language, people.created_at," +
	" (SELECT string_agg(grants.role, '" + roleSeparator + "') FROM grants WHERE grants.tenant = people.tenant AND grants.person_id = people.id)"

// personDest gives the destinations of personColumns, which may all be NULL in an outer join; done fills the person
// after the scan.
func personDest(p *holdpoint.Person) (dest []any, done func()) {
	var (
		id, tenant, email, password, language, roles sql.NullString
		must, disabled, created                      sql.NullInt64
	)
	return []any{&id, &tenant, &email, &password, &must, &disabled, &language, &created, &roles}, func() {
		*p = holdpoint.Person{ID: id.String, Tenant: tenant.String, Email: email.String, Password: password.String,
			MustChange: must.Int64 != 0, Disabled: disabled.Int64 != 0, Language: language.String,
			CreatedAt: instant(created.Int64), GrantedRoles: []string{}}
		if roles.Valid {
			p.GrantedRoles = strings.Split(roles.String, roleSeparator)
			slices.Sort(p.GrantedRoles)
		}
	}
}

func scanPerson(row scanner) (holdpoint.Person, error) {
	var p holdpoint.Person
	dest, done := personDest(&p)
	if err := row.Scan(dest...); err != nil {
		return p, err
	}
	done()
	return p, nil
}

func noPerson(id string) error {
	return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no person %s in this tenant; list its people", id)
}

// lockTenant takes the lock of the tenant's row, which record takes in any case, before anything else, and reads the
// clock after it: changes of one tenant's people and policies stand in one order, and their events show that order.
// The update moves no key, so it does not stop new runs of the tenant. not_found if there is no such tenant.
func (t *tx) lockTenant(ctx context.Context, tenant string) (time.Time, error) {
	res, err := t.ExecContext(ctx, "UPDATE tenants SET event_seq = event_seq WHERE tenant = $1", tenant)
	if err := oneRow(res, err, noTenant(tenant)); err != nil {
		return time.Time{}, err
	}
	return t.now(ctx)
}

// CreatePerson implements store.People. The e-mail is kept in lower case. GrantedRoles are granted with it.
func (s *Store) CreatePerson(ctx context.Context, p holdpoint.Person, who holdpoint.Who) error {
	return s.do(ctx, "create person", func(t *tx) error {
		now, err := t.lockTenant(ctx, p.Tenant)
		if err != nil {
			return err
		}
		// The unique index closes the race of two creations of one address.
		res, err := t.ExecContext(ctx, `INSERT INTO people (tenant, id, email, password, must_change, disabled, language, created_at)
 VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING`,
			p.Tenant, p.ID, strings.ToLower(p.Email), p.Password, bit(p.MustChange), bit(p.Disabled), p.Language, now.UnixMicro())
		if err := oneRow(res, err, holdpoint.Errorf(holdpoint.CodeExists, "this tenant has a person with that e-mail already; grant roles to that one")); err != nil {
			return err
		}
		events := []event{{tenant: p.Tenant, kind: "person.created", who: who, data: map[string]any{"person_id": p.ID}}}
		for _, role := range p.GrantedRoles {
			granted, err := t.grant(ctx, now, p.Tenant, p.ID, role, who)
			if err != nil {
				return err
			}
			events = append(events, granted...)
		}
		return t.record(ctx, now, events...)
	})
}

// PersonByEmail implements store.People; not_found.
func (s *Store) PersonByEmail(ctx context.Context, tenant, email string) (holdpoint.Person, error) {
	p, err := scanPerson(s.read.QueryRowContext(ctx, "SELECT "+personColumns+" FROM people WHERE tenant = $1 AND email = $2", tenant, strings.ToLower(email)))
	return p, readErr("person by e-mail", err, holdpoint.Errorf(holdpoint.CodeNotFound, "there is no person with that e-mail in this tenant; add one first"))
}

// PersonByID implements store.People; not_found.
func (s *Store) PersonByID(ctx context.Context, tenant, id string) (holdpoint.Person, error) {
	p, err := scanPerson(s.read.QueryRowContext(ctx, "SELECT "+personColumns+" FROM people WHERE tenant = $1 AND id = $2", tenant, id))
	return p, readErr("person by id", err, noPerson(id))
}

// ListPeople implements store.People, in order of e-mail.
func (s *Store) ListPeople(ctx context.Context, tenant string) ([]holdpoint.Person, error) {
	people, err := s.people.do(ctx, tenant)
	return slices.Clone(people), err
}

var tenantNames = columns("tenant text")

func (s *Store) peopleOf(ctx context.Context, tenants []string, found map[string][]holdpoint.Person) error {
	rows := make([][]any, len(tenants))
	for i, tenant := range tenants {
		rows[i], found[tenant] = []any{tenant}, nil
	}
	return s.each(tenantNames, rows, nil, func(with string, args []any) error {
		returned, err := s.read.QueryContext(ctx, with+" SELECT "+personColumns+" FROM v JOIN people ON people.tenant = v.tenant ORDER BY people.email", args...)
		_, err = collect(returned, err, func(row scanner) (holdpoint.Person, error) {
			p, err := scanPerson(row)
			found[p.Tenant] = append(found[p.Tenant], p)
			return p, err
		})
		return err
	})
}

// SetPassword implements store.People; not_found.
func (s *Store) SetPassword(ctx context.Context, tenant, id, phc string, mustChange bool, who holdpoint.Who) error {
	return s.do(ctx, "set password", func(t *tx) error {
		now, err := t.lockTenant(ctx, tenant)
		if err != nil {
			return err
		}
		res, err := t.ExecContext(ctx, "UPDATE people SET password = $3, must_change = $4 WHERE tenant = $1 AND id = $2", tenant, id, phc, bit(mustChange))
		if err := oneRow(res, err, noPerson(id)); err != nil {
			return err
		}
		ended, err := t.endSessions(ctx, tenant, id)
		if err != nil {
			return err
		}
		return t.record(ctx, now, event{tenant: tenant, kind: "person.password_changed", who: who,
			data: map[string]any{"person_id": id, "must_change": mustChange, "sessions_ended": ended}})
	})
}

// SetDisabled implements store.People; not_found. What stands already is no error and no event. Enabling a person
// again brings back neither sessions nor tokens.
func (s *Store) SetDisabled(ctx context.Context, tenant, id string, disabled bool, who holdpoint.Who) error {
	return s.do(ctx, "disable person", func(t *tx) error {
		now, err := t.lockTenant(ctx, tenant)
		if err != nil {
			return err
		}
		var before int64
		err = t.QueryRowContext(ctx, "SELECT disabled FROM people WHERE tenant = $1 AND id = $2", tenant, id).Scan(&before)
		if errors.Is(err, sql.ErrNoRows) {
			return noPerson(id)
		}
		if err != nil || before == bit(disabled) {
			return err
		}
		if _, err := t.ExecContext(ctx, "UPDATE people SET disabled = $3 WHERE tenant = $1 AND id = $2", tenant, id, bit(disabled)); err != nil {
			return err
		}
		if !disabled {
			return t.record(ctx, now, event{tenant: tenant, kind: "person.enabled", who: who, data: map[string]any{"person_id": id}})
		}
		ended, err := t.endSessions(ctx, tenant, id)
		if err != nil {
			return err
		}
		// New tokens wait for the tenant's lock and then find the person disabled, so none slips past this statement.
		res, err := t.ExecContext(ctx, "UPDATE api_keys SET revoked_at = $3 WHERE tenant = $1 AND person_id = $2 AND revoked_at IS NULL", tenant, id, now.UnixMicro())
		if err != nil {
			return err
		}
		revoked, err := res.RowsAffected()
		if err != nil {
			return err
		}
		return t.record(ctx, now, event{tenant: tenant, kind: "person.disabled", who: who,
			data: map[string]any{"person_id": id, "sessions_ended": ended, "tokens_revoked": revoked}})
	})
}

// SetLanguage implements store.People; not_found. A taste, not a right: it leaves no event.
func (s *Store) SetLanguage(ctx context.Context, tenant, id, language string) error {
	return s.do(ctx, "set language", func(t *tx) error {
		res, err := t.ExecContext(ctx, "UPDATE people SET language = $3 WHERE tenant = $1 AND id = $2", tenant, id, language)
		return oneRow(res, err, noPerson(id))
	})
}

// GrantRole implements store.People; not_found. A grant that stands already is no error and no event.
func (s *Store) GrantRole(ctx context.Context, tenant, id, role string, who holdpoint.Who) error {
	return s.do(ctx, "grant role", func(t *tx) error {
		now, err := t.lockTenant(ctx, tenant)
		if err != nil {
			return err
		}
		var found int64
		err = t.QueryRowContext(ctx, "SELECT 1 FROM people WHERE tenant = $1 AND id = $2", tenant, id).Scan(&found)
		if errors.Is(err, sql.ErrNoRows) {
			return noPerson(id)
		}
		if err != nil {
			return err
		}
		granted, err := t.grant(ctx, now, tenant, id, role, who)
		if err != nil {
			return err
		}
		return t.record(ctx, now, granted...)
	})
}

// grant adds one role and gives the event of it, or none if the person has it.
func (t *tx) grant(ctx context.Context, now time.Time, tenant, id, role string, who holdpoint.Who) ([]event, error) {
	res, err := t.ExecContext(ctx, "INSERT INTO grants (tenant, person_id, role, granted_by, granted_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
		tenant, id, role, who.ID, now.UnixMicro())
	if err != nil {
		return nil, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return nil, err
	}
	return []event{{tenant: tenant, kind: "role.granted", who: who, data: map[string]any{"person_id": id, "role": role}}}, nil
}

// RevokeRole implements store.People; not_found if the person has no such grant in the store.
func (s *Store) RevokeRole(ctx context.Context, tenant, id, role string, who holdpoint.Who) error {
	return s.do(ctx, "revoke role", func(t *tx) error {
		now, err := t.lockTenant(ctx, tenant)
		if err != nil {
			return err
		}
		res, err := t.ExecContext(ctx, "DELETE FROM grants WHERE tenant = $1 AND person_id = $2 AND role = $3", tenant, id, role)
		if err := oneRow(res, err, holdpoint.Errorf(holdpoint.CodeNotFound, "person %s has no such grant; roles that policy gives end with the policy", id)); err != nil {
			return err
		}
		return t.record(ctx, now, event{tenant: tenant, kind: "role.revoked", who: who, data: map[string]any{"person_id": id, "role": role}})
	})
}

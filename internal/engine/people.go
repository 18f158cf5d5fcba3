package engine

import (
	"context"
	"errors"
	"net/mail"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/auth"
)

// The limits of a session.
const (
	sessionIdle     = 8 * time.Hour
	sessionAbsolute = 24 * time.Hour
)

// DefaultTenant is the tenant that init makes and that a log-in without a tenant goes to.
const DefaultTenant = "default"

// activeOrNil gives the active policy, or nil where there is none: roles then come from grants alone.
func (e *Engine) activeOrNil(ctx context.Context, tenant string) (*loaded, error) {
	p, err := e.policies.active(ctx, tenant)
	if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeNoPolicy}) || errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeInvalidPolicy}) {
		return nil, nil
	}
	return p, err
}

// sessionActor is a signed-in person.
func (e *Engine) sessionActor(p *loaded, x holdpoint.Person) holdpoint.Actor {
	return holdpoint.Actor{Kind: holdpoint.ActorPerson, ID: x.ID, Email: x.Email, Tenant: x.Tenant, Roles: rolesOf(p, x), Scopes: holdpoint.PersonScopes,
		Assurance: holdpoint.AssuranceLogin, How: holdpoint.HowSession, Disabled: x.Disabled, MustChangePassword: x.MustChange}
}

// Login checks a password and opens a session; the token is the cookie's value. It is limited per account and per address,
// and an unknown account takes as long and reads the same as a wrong password.
func (e *Engine) Login(ctx context.Context, tenant, email, password, remote string) (token string, x holdpoint.Person, err error) {
	email = strings.ToLower(strings.TrimSpace(email))
	for _, key := range []string{auth.AccountKey(tenant + "/" + email), auth.AddressKey(remote)} {
		if ok, wait := e.logins.Allow(key); !ok {
			return "", x, holdpoint.Errorf(holdpoint.CodeRateLimited, "too many log-ins; wait a moment and try again").With("retry_after", int(wait.Seconds())+1)
		}
	}
	x, err = e.store.PersonByEmail(ctx, tenant, email)
	if err != nil && !errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeNotFound}) {
		return "", x, err
	}
	ok, err := e.passwords.Verify(ctx, x.Password, password)
	if err != nil {
		return "", x, err
	}
	if !ok || x.ID == "" || x.Disabled {
		return "", holdpoint.Person{}, holdpoint.Errorf(holdpoint.CodeUnauthenticated, "e-mail address or password is wrong")
	}
	m := auth.Mint(auth.KindSession)
	return m.Token, x, e.store.CreateSession(ctx, tenant, x.ID, m.Hash, sessionIdle, sessionAbsolute, holdpoint.Who{Kind: holdpoint.ActorPerson, ID: x.Email, How: "password"})
}

// Logout ends a session.
func (e *Engine) Logout(ctx context.Context, token string) error {
	return e.store.EndSession(ctx, auth.HashToken(token))
}

// Session gives the person behind a session cookie as an actor; unauthenticated if the session is not live.
func (e *Engine) Session(ctx context.Context, token string) (holdpoint.Actor, holdpoint.Person, error) {
	if k, ok := auth.KindOf(token); !ok || k != auth.KindSession {
		return holdpoint.Actor{}, holdpoint.Person{}, unauthenticated()
	}
	x, err := e.store.SessionByHash(ctx, auth.HashToken(token))
	if err != nil {
		return holdpoint.Actor{}, x, asUnauthenticated(err)
	}
	p, err := e.activeOrNil(ctx, x.Tenant)
	return e.sessionActor(p, x), x, err
}

// Bearer gives the actor behind a machine key (hp_…) or a person's token (hpu_…); unauthenticated if it is not live.
func (e *Engine) Bearer(ctx context.Context, token string) (holdpoint.Actor, error) {
	kind, ok := auth.KindOf(token)
	if !ok || (kind != auth.KindMachine && kind != auth.KindPerson) {
		return holdpoint.Actor{}, unauthenticated()
	}
	k, x, err := e.store.KeyByHash(ctx, auth.HashToken(token))
	if err != nil {
		return holdpoint.Actor{}, asUnauthenticated(err)
	}
	if x == nil {
		return holdpoint.Actor{Kind: holdpoint.ActorMachine, ID: k.ID, Tenant: k.Tenant, Scopes: k.Scopes, How: holdpoint.HowKey}, nil
	}
	p, err := e.activeOrNil(ctx, k.Tenant)
	a := e.sessionActor(p, *x)
	a.Scopes, a.How = k.Scopes, holdpoint.HowToken
	a.MustChangePassword = false // a token is minted by the person or by a local administrator, and is no password
	return a, err
}

func unauthenticated() error {
	return holdpoint.Errorf(holdpoint.CodeUnauthenticated, "this token is unknown, revoked or expired; send a live one as Authorization: Bearer, or sign in")
}

func asUnauthenticated(err error) error {
	if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeNotFound}) {
		return unauthenticated()
	}
	return err
}

// Local is the actor of a command that opens the store itself.
func Local(tenant, osUser string) holdpoint.Actor {
	return holdpoint.Actor{Kind: holdpoint.ActorLocal, ID: "local:" + osUser, Tenant: tenant, How: "store"}
}

// LinkActor gives the person behind a challenge's token at link assurance, bound to that challenge's approval; not_found,
// always alike, for a token that is unknown, revoked or expired. A token that is used up opens nothing any more, but whoever
// has opened it before and repeats the decision, since the answer was lost, gets what stands. It changes nothing.
func (e *Engine) LinkActor(ctx context.Context, token string) (holdpoint.Actor, holdpoint.Challenge, error) {
	gone := holdpoint.Errorf(holdpoint.CodeNotFound, "this link does not open anything now; sign in to see what waits for you")
	if k, ok := auth.KindOf(token); !ok || k != auth.KindChallenge {
		return holdpoint.Actor{}, holdpoint.Challenge{}, gone
	}
	ch, err := e.store.ChallengeByToken(ctx, auth.HashToken(token))
	if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeNotFound}) {
		return holdpoint.Actor{}, ch, gone
	}
	if err != nil {
		return holdpoint.Actor{}, ch, err
	}
	ap, err := e.store.ApprovalByID(ctx, ch.Tenant, ch.ApprovalID)
	if err != nil {
		return holdpoint.Actor{}, ch, err
	}
	now, err := e.store.Now(ctx)
	if err != nil {
		return holdpoint.Actor{}, ch, err
	}
	if ap.Assurance != holdpoint.AssuranceLink || ch.RevokedAt != nil || !now.Before(ch.ExpiresAt) {
		return holdpoint.Actor{}, ch, gone
	}
	x, err := e.store.PersonByEmail(ctx, ch.Tenant, ch.Email)
	if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeNotFound}) {
		return holdpoint.Actor{}, ch, gone
	}
	if err != nil {
		return holdpoint.Actor{}, ch, err
	}
	p, err := e.activeOrNil(ctx, x.Tenant)
	a := e.sessionActor(p, x)
	a.Assurance, a.How, a.Scopes, a.MustChangePassword = holdpoint.AssuranceLink, holdpoint.HowLink, []holdpoint.Scope{holdpoint.ScopeDecide}, false
	return a, ch, err
}

// ChallengeOf gives the approval that a token leads to, whatever the token's state, for a person who is signed in; the
// page then shows what that person may see. not_found if the token is unknown or another tenant's.
func (e *Engine) ChallengeOf(ctx context.Context, a holdpoint.Actor, token string) (holdpoint.Challenge, error) {
	ch, err := e.store.ChallengeByToken(ctx, auth.HashToken(token))
	if err == nil && ch.Tenant != a.Tenant {
		err = holdpoint.Errorf(holdpoint.CodeNotFound, "this link does not open anything in your tenant")
	}
	return ch, err
}

// OpenLink notes that a person opened a challenge, by an explicit POST at link assurance or by viewing it signed in.
func (e *Engine) OpenLink(ctx context.Context, ch holdpoint.Challenge) error {
	_, err := e.store.OpenChallenge(ctx, ch.Tenant, ch.ID)
	return err
}

// NewPerson is a fresh account with its first password, which must be changed at the first log-in unless it was chosen.
type NewPerson struct {
	ID       string `json:"id"`
	Email    string `json:"email"`
	Password string `json:"password,omitempty"`
}

// AddPerson makes an account. An empty password asks for a random one.
func (e *Engine) AddPerson(ctx context.Context, by holdpoint.Actor, email, password string) (NewPerson, error) {
	if err := permit(by, holdpoint.ActionPeopleManage); err != nil {
		return NewPerson{}, err
	}
	email, err := plainAddress(email)
	if err != nil {
		return NewPerson{}, err
	}
	n := NewPerson{ID: newID(), Email: email}
	chosen := password != ""
	if !chosen {
		password = auth.RandomPassword()
		n.Password = password
	}
	phc, err := e.passwords.Hash(ctx, password)
	if err != nil {
		return NewPerson{}, err
	}
	if err := e.store.CreatePerson(ctx, holdpoint.Person{ID: n.ID, Tenant: by.Tenant, Email: n.Email, Password: phc, MustChange: !chosen}, who(by)); err != nil {
		return NewPerson{}, err
	}
	return n, nil
}

// plainAddress gives a bare e-mail address in lower case: nothing around it, no name, no comment, no quotes.
func plainAddress(email string) (string, error) {
	addr, err := mail.ParseAddress(email)
	if err != nil || addr.Address != email || len(email) > 254 {
		return "", holdpoint.Errorf(holdpoint.CodeInvalidRequest, "give a plain e-mail address, for example ana@acme.example")
	}
	return strings.ToLower(email), nil
}

// PersonView is an account with the roles that count now.
type PersonView struct {
	holdpoint.Person
	Roles []string `json:"roles"`
}

// People lists the accounts of the tenant.
func (e *Engine) People(ctx context.Context, a holdpoint.Actor) ([]PersonView, error) {
	if err := permit(a, holdpoint.ActionPeopleManage); err != nil {
		return nil, err
	}
	all, err := e.store.ListPeople(ctx, a.Tenant)
	if err != nil {
		return nil, err
	}
	p, err := e.activeOrNil(ctx, a.Tenant)
	out := make([]PersonView, len(all))
	for i, x := range all {
		out[i] = PersonView{x, rolesOf(p, x)}
	}
	return out, err
}

// ChangePassword replaces the person's own password after checking the old one; all sessions end.
func (e *Engine) ChangePassword(ctx context.Context, a holdpoint.Actor, old, fresh string) error {
	if err := permit(a, holdpoint.ActionPasswordChange); err != nil {
		return err
	}
	x, err := e.store.PersonByID(ctx, a.Tenant, a.ID)
	if err != nil {
		return err
	}
	if ok, err := e.passwords.Verify(ctx, x.Password, old); err != nil || !ok {
		return errors.Join(err, holdpoint.Errorf(holdpoint.CodeForbidden, "the present password is wrong"))
	}
	if old == fresh {
		return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "choose a password that differs from the present one")
	}
	phc, err := e.passwords.Hash(ctx, fresh)
	if err != nil {
		return err
	}
	return e.store.SetPassword(ctx, a.Tenant, a.ID, phc, false, who(a))
}

// SetLanguage chooses the language in which Holdpoint speaks to the person; "" follows the browser.
func (e *Engine) SetLanguage(ctx context.Context, a holdpoint.Actor, language string) error {
	return e.store.SetLanguage(ctx, a.Tenant, a.ID, language)
}

// SetDisabled disables or enables an account; disabling ends its sessions and revokes its tokens.
func (e *Engine) SetDisabled(ctx context.Context, by holdpoint.Actor, email string, disabled bool) error {
	if err := permit(by, holdpoint.ActionPeopleManage); err != nil {
		return err
	}
	x, err := e.store.PersonByEmail(ctx, by.Tenant, strings.ToLower(email))
	if err != nil {
		return err
	}
	if disabled {
		if err := e.keepAdmin(ctx, by.Tenant, x.ID, ""); err != nil {
			return err
		}
	}
	return e.store.SetDisabled(ctx, by.Tenant, x.ID, disabled, who(by))
}

// Grant gives a person a role beside what policy says; Revoke takes such a grant back.
func (e *Engine) Grant(ctx context.Context, by holdpoint.Actor, email, role string) error {
	if err := permit(by, holdpoint.ActionPeopleManage); err != nil {
		return err
	}
	p, err := e.activeOrNil(ctx, by.Tenant)
	if err != nil {
		return err
	}
	known := slices.Contains(holdpoint.ReservedRoles, role)
	if p != nil {
		_, named := p.Roles[role]
		known = known || named
	}
	if !known {
		return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "no role has this name; use one of the policy's roles or %s", strings.Join(holdpoint.ReservedRoles, ", "))
	}
	x, err := e.store.PersonByEmail(ctx, by.Tenant, strings.ToLower(email))
	if err != nil {
		return err
	}
	return e.store.GrantRole(ctx, by.Tenant, x.ID, role, who(by))
}

// Revoke takes a granted role back. It is refused if nobody would be left as tenant-admin or policy-owner.
func (e *Engine) Revoke(ctx context.Context, by holdpoint.Actor, email, role string) error {
	if err := permit(by, holdpoint.ActionPeopleManage); err != nil {
		return err
	}
	x, err := e.store.PersonByEmail(ctx, by.Tenant, strings.ToLower(email))
	if err != nil {
		return err
	}
	if err := e.keepAdmin(ctx, by.Tenant, x.ID, role); err != nil {
		return err
	}
	err = e.store.RevokeRole(ctx, by.Tenant, x.ID, role, who(by))
	if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeNotFound}) {
		return holdpoint.Errorf(holdpoint.CodeNotFound, "%s has no grant of the role %s; a role that the policy gives is taken back there", x.Email, role)
	}
	return err
}

// keepAdmin refuses a change after which nobody would administer the tenant or own its policy: the person loses role, or
// everything if role is "".
func (e *Engine) keepAdmin(ctx context.Context, tenant, personID, role string) error {
	people, err := e.store.ListPeople(ctx, tenant)
	if err != nil {
		return err
	}
	p, err := e.activeOrNil(ctx, tenant)
	if err != nil {
		return err
	}
	for i, x := range people {
		if x.ID != personID {
			continue
		}
		if role == "" {
			people[i].Disabled = true
		} else {
			people[i].GrantedRoles = slices.DeleteFunc(slices.Clone(x.GrantedRoles), func(r string) bool { return r == role })
		}
	}
	for _, r := range []string{holdpoint.RoleTenantAdmin, holdpoint.RolePolicyOwner} {
		if len(holders(p, people, r)) == 0 {
			return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "nobody would hold the role %s afterwards; grant it to somebody else first", r)
		}
	}
	return nil
}

// NewKey is a key with its secret, which is shown once and not stored.
type NewKey struct {
	ID  string `json:"id"`
	Key string `json:"key"`
}

// CreateKey mints a machine key.
func (e *Engine) CreateKey(ctx context.Context, by holdpoint.Actor, name string, scopes []holdpoint.Scope) (NewKey, error) {
	if err := permit(by, holdpoint.ActionKeysManage); err != nil {
		return NewKey{}, err
	}
	if name == "" || len(name) > 100 || len(scopes) == 0 {
		return NewKey{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "give the key a name and at least one scope: work, read, content")
	}
	for _, s := range scopes {
		if !slices.Contains(holdpoint.MachineScopes, s) {
			return NewKey{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "a machine key may hold the scopes work, read and content only")
		}
	}
	return e.mint(ctx, by, auth.KindMachine, holdpoint.Key{Kind: holdpoint.ActorMachine, Name: name, Scopes: scopes})
}

// mint stores a fresh key and gives its secret, if and only if it is stored.
func (e *Engine) mint(ctx context.Context, by holdpoint.Actor, kind auth.Kind, k holdpoint.Key) (NewKey, error) {
	m := auth.Mint(kind)
	k.ID, k.Tenant = newID(), by.Tenant
	if err := e.store.CreateKey(ctx, k, m.Hash, who(by)); err != nil {
		return NewKey{}, err
	}
	return NewKey{k.ID, m.Token}, nil
}

// CreateToken mints a person's token: over the API only for oneself, by a local command for anybody.
func (e *Engine) CreateToken(ctx context.Context, by holdpoint.Actor, email, name string, scopes []holdpoint.Scope) (NewKey, error) {
	o := holdpoint.Object{Tenant: by.Tenant, Scopes: scopes}
	if err := holdpoint.Permit(by, holdpoint.ActionTokenOwn, o).Err(); err != nil {
		return NewKey{}, err
	}
	if by.Kind == holdpoint.ActorPerson && !strings.EqualFold(by.Email, email) {
		return NewKey{}, holdpoint.Errorf(holdpoint.CodeForbidden, "a token is minted only by its own person")
	}
	if len(scopes) == 0 || len(name) > 100 {
		return NewKey{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "give at least one scope (read, content, decide, operate, switch, admin) and a name of at most 100 bytes")
	}
	x, err := e.store.PersonByEmail(ctx, by.Tenant, strings.ToLower(email))
	if err != nil {
		return NewKey{}, err
	}
	return e.mint(ctx, by, auth.KindPerson, holdpoint.Key{Kind: holdpoint.ActorPerson, Name: name, PersonID: x.ID, Scopes: scopes})
}

// Keys lists machine keys and people's tokens without secrets.
func (e *Engine) Keys(ctx context.Context, a holdpoint.Actor) ([]holdpoint.Key, error) {
	if err := permit(a, holdpoint.ActionKeysManage); err != nil {
		return nil, err
	}
	return e.store.ListKeys(ctx, a.Tenant)
}

// RevokeKey revokes a key at once. A person may revoke a token of their own.
func (e *Engine) RevokeKey(ctx context.Context, by holdpoint.Actor, id string) error {
	if err := permit(by, holdpoint.ActionKeysManage); err != nil {
		keys, lerr := e.store.ListKeys(ctx, by.Tenant)
		own := slices.ContainsFunc(keys, func(k holdpoint.Key) bool { return k.ID == id && k.PersonID != "" && k.PersonID == by.ID })
		if lerr != nil || !own {
			return err
		}
	}
	return e.store.RevokeKey(ctx, by.Tenant, id, who(by))
}

package holdpoint_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdpoint/holdpoint"
)

// rights is the table as people would write it down: action, kind, role, scopes of which one suffices. `any` is any
// role, `gate` a role of the gate, `-` nothing asked. It is written independently of Permissions.
const rights = `
approval.view      machine -            read
approval.view      person  gate         read content decide
approval.view      person  operator     read operate
approval.view      person  auditor      read content
approval.decide    person  gate         decide
approval.withdraw  person  operator     operate
run.view           machine -            work read
run.view           person  any          read content decide operate
run.content        machine -            content
run.content        person  gate         content decide
run.content        person  auditor      content
run.work           machine -            work
run.replace        person  operator     operate
run.cancel         person  operator     operate
step.resolve       person  operator     operate
effect.view        machine -            work read
effect.view        person  any          read content decide operate
effect.cancel      person  operator     operate
effect.reconcile   person  operator     operate
effect.resolve     person  operator     operate
effect.reauthorise person  operator     operate
switch.view        machine -            read
switch.view        person  any          read operate switch
switch.set         person  switch-owner switch
policy.view        person  any          read admin
policy.view        local   -            -
policy.propose     person  policy-owner admin
policy.propose     local   -            -
policy.activate    person  policy-owner admin
policy.activate    local   -            -
people.manage      person  tenant-admin admin
people.manage      local   -            -
keys.manage        person  tenant-admin admin
keys.manage        local   -            -
evidence.view      machine -            read
evidence.view      person  auditor      read content
evidence.view      person  operator     read operate
evidence.view      local   -            -
connector.view     machine -            read
connector.view     person  any          read operate admin
connector.release  person  operator     operate
token.own          person  -            read content decide operate switch admin
token.own          local   -            -
password.change    person  -            -
`

var (
	gateRole  = "support-lead"
	allKinds  = []string{"machine", "person", "local", "system", ""}
	allScopes = []holdpoint.Scope{"work", "read", "content", "decide", "operate", "switch", "admin"}
	allRoles  = []string{"operator", "switch-owner", "auditor", "policy-owner", "tenant-admin", gateRole, "physician"}
)

func allActions() []holdpoint.Action {
	seen := map[holdpoint.Action]bool{"no.such": true, "": true}
	for line := range strings.Lines(rights) {
		if f := strings.Fields(line); len(f) > 0 {
			seen[holdpoint.Action(f[0])] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// expected reads rights.
func expected(action holdpoint.Action, kind, role string, scope holdpoint.Scope) bool {
	for line := range strings.Lines(rights) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != string(action) || f[1] != kind {
			continue
		}
		roleOK := f[2] == "-" || f[2] == role || f[2] == "any" && role != "" || f[2] == "gate" && role == gateRole
		if roleOK && (f[3] == "-" || slices.Contains(f[3:], string(scope))) {
			return true
		}
	}
	return false
}

func person(roles ...string) holdpoint.Actor {
	return holdpoint.Actor{
		Kind: "person", ID: "p-1", Email: "ana@acme.example", Tenant: "acme", Roles: roles,
		Scopes: holdpoint.PersonScopes, Assurance: "login", How: "session",
	}
}

func gate() holdpoint.Object {
	return holdpoint.Object{
		Tenant: "acme", GateRoles: []string{gateRole}, Assurance: "login", Initiator: "bo@acme.example",
		Editors: []string{"cy@acme.example"}, Subject: "jane@customer.example", Switch: "tenant",
	}
}

// Every action, kind, role and scope, one of each at a time.
func TestPermitIsTheTable(t *testing.T) {
	for _, action := range allActions() {
		for _, kind := range allKinds {
			for _, role := range append([]string{""}, allRoles...) {
				for _, scope := range append([]holdpoint.Scope{""}, allScopes...) {
					a := person(role)
					a.Kind, a.Scopes = kind, []holdpoint.Scope{scope}
					d := holdpoint.Permit(a, action, gate())
					require.Equal(t, expected(action, kind, role, scope), d == nil, "%s %s %s %s: %+v", action, kind, role, scope, d)
					if d != nil {
						require.NotEmpty(t, d.Right)
						require.Regexp(t, `^[A-Z].*\.$`, d.Why, "one sentence")
						require.NotEmpty(t, d.Code)
					}
				}
			}
		}
	}
}

func TestPermissionsHoldNoSurprise(t *testing.T) {
	actions := allActions()
	for _, p := range holdpoint.Permissions {
		require.Contains(t, actions, p.Action)
		if p.Kind == holdpoint.ActorPerson {
			require.NotEqual(t, holdpoint.AssuranceNone, p.Assurance, "%s: a person always proves something", p)
		}
		for _, s := range p.Scopes {
			allowed := holdpoint.PersonScopes
			if p.Kind == holdpoint.ActorMachine {
				allowed = holdpoint.MachineScopes
			}
			require.Contains(t, allowed, s, p.String())
		}
	}
}

func anyActor(t *rapid.T) holdpoint.Actor {
	return holdpoint.Actor{
		Kind:               rapid.SampledFrom(allKinds).Draw(t, "kind"),
		ID:                 rapid.SampledFrom([]string{"p-1", "p-2", ""}).Draw(t, "id"),
		Email:              rapid.SampledFrom([]string{"ana@acme.example", "bo@acme.example", ""}).Draw(t, "email"),
		Tenant:             rapid.SampledFrom([]string{"acme", "other", ""}).Draw(t, "tenant"),
		Roles:              rapid.SliceOf(rapid.SampledFrom(append([]string{""}, allRoles...))).Draw(t, "roles"),
		Scopes:             rapid.SliceOf(rapid.SampledFrom(allScopes)).Draw(t, "scopes"),
		Assurance:          rapid.SampledFrom([]string{"", "link", "login", "sso", "(gate)"}).Draw(t, "assurance"),
		How:                rapid.SampledFrom([]string{"session", "token", "key", "link", ""}).Draw(t, "how"),
		Disabled:           rapid.Bool().Draw(t, "disabled"),
		MustChangePassword: rapid.Bool().Draw(t, "must change"),
	}
}

func anyObject(t *rapid.T) holdpoint.Object {
	return holdpoint.Object{
		Tenant:     rapid.SampledFrom([]string{"acme", "other", ""}).Draw(t, "object tenant"),
		GateRoles:  rapid.SliceOf(rapid.SampledFrom(append([]string{""}, allRoles...))).Draw(t, "gate roles"),
		Assurance:  rapid.SampledFrom([]string{"", "link", "login", "sso", "sso+fresh"}).Draw(t, "gate assurance"),
		Initiator:  rapid.SampledFrom([]string{"", "ANA@acme.example", "p-2"}).Draw(t, "initiator"),
		WorkedBy:   rapid.SliceOf(rapid.SampledFrom([]string{"p-1", "p-2"})).Draw(t, "worked by"),
		Switch:     rapid.SampledFrom([]string{"", "global", "tenant", "type:x"}).Draw(t, "switch"),
		SoleTenant: rapid.Bool().Draw(t, "sole tenant"),
	}
}

func TestOnlyAPersonEverDecidesOrSwitches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, o := anyActor(t), anyObject(t)
		for _, action := range []holdpoint.Action{holdpoint.ActionApprovalDecide, holdpoint.ActionSwitchSet} {
			if holdpoint.Permit(a, action, o) == nil && a.Kind != holdpoint.ActorPerson {
				t.Fatalf("%s may %s", a.Kind, action)
			}
		}
		a.Kind, a.Scopes, a.Roles, a.Assurance = "machine", allScopes, append(allRoles, o.GateRoles...), "login"
		if holdpoint.Permit(a, holdpoint.ActionApprovalDecide, o) == nil {
			t.Fatalf("a machine decides")
		}
	})
}

func TestPermitDeniesByDefault(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, o := anyActor(t), anyObject(t)
		action := rapid.SampledFrom(allActions()).Draw(t, "action")
		if holdpoint.Permit(a, action, o) != nil {
			// A further role or scope may permit; taking the rest away from a denied actor never does.
			a.Roles, a.Scopes, a.Assurance = nil, nil, ""
			if holdpoint.Permit(a, action, o) == nil {
				t.Fatalf("fewer rights permit more")
			}
			return
		}
		switch {
		case a.Disabled, a.ID == "", a.Tenant == "", a.Tenant != o.Tenant, a.Kind == "system":
			t.Fatalf("permitted %s to %+v", action, a)
		case a.MustChangePassword && action != "password.change":
			t.Fatalf("permitted %s before the password was changed", action)
		}
	})
}

func TestPermitBars(t *testing.T) {
	tests := map[string]struct {
		change func(*holdpoint.Actor)
		code   holdpoint.Code
	}{
		"nobody":        {func(a *holdpoint.Actor) { a.ID = "" }, holdpoint.CodeUnauthenticated},
		"disabled":      {func(a *holdpoint.Actor) { a.Disabled = true }, holdpoint.CodeForbidden},
		"other tenant":  {func(a *holdpoint.Actor) { a.Tenant = "other" }, holdpoint.CodeNotFound},
		"no tenant":     {func(a *holdpoint.Actor) { a.Tenant = "" }, holdpoint.CodeNotFound},
		"must change":   {func(a *holdpoint.Actor) { a.MustChangePassword = true }, holdpoint.CodePasswordChange},
		"wrong scope":   {func(a *holdpoint.Actor) { a.Scopes = []holdpoint.Scope{"read"} }, holdpoint.CodeInsufficientScope},
		"wrong role":    {func(a *holdpoint.Actor) { a.Roles = []string{"auditor"} }, holdpoint.CodeForbidden},
		"not signed in": {func(a *holdpoint.Actor) { a.Assurance = "" }, holdpoint.CodeForbidden},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := person("operator")
			require.Nil(t, holdpoint.Permit(a, holdpoint.ActionRunCancel, gate()))
			tt.change(&a)
			d := holdpoint.Permit(a, holdpoint.ActionRunCancel, gate())
			require.NotNil(t, d)
			require.Equal(t, tt.code, d.Code)
			require.ErrorIs(t, d.Err(), &holdpoint.Error{Code: tt.code})
		})
	}
	require.NoError(t, holdpoint.Permit(person("operator"), holdpoint.ActionRunCancel, gate()).Err())

	a := person()
	a.MustChangePassword = true
	require.Nil(t, holdpoint.Permit(a, holdpoint.ActionPasswordChange, gate()))
	a.How = holdpoint.HowToken
	require.NotNil(t, holdpoint.Permit(a, holdpoint.ActionPasswordChange, gate()), "a token does not change a password")
}

func TestSeparationOfDuties(t *testing.T) {
	tests := map[string]struct {
		change func(*holdpoint.Object)
		denied bool
	}{
		"somebody else":            {func(*holdpoint.Object) {}, false},
		"initiator":                {func(o *holdpoint.Object) { o.Initiator = "ana@acme.example" }, true},
		"initiator, other case":    {func(o *holdpoint.Object) { o.Initiator = "Ana@ACME.example" }, true},
		"initiator, blanks":        {func(o *holdpoint.Object) { o.Initiator = " ana@acme.example\n" }, true},
		"initiator, with name":     {func(o *holdpoint.Object) { o.Initiator = "Ana Lee <ana@acme.example>" }, true},
		"initiator, name with <":   {func(o *holdpoint.Object) { o.Initiator = `"a<b>" <ana@acme.example>` }, true},
		"initiator by id":          {func(o *holdpoint.Object) { o.Initiator = "P-1" }, true},
		"second editor":            {func(o *holdpoint.Object) { o.Editors = []string{"cy@acme.example", "ANA@acme.example"} }, true},
		"editor by id":             {func(o *holdpoint.Object) { o.Editors = []string{"p-1"} }, true},
		"subject":                  {func(o *holdpoint.Object) { o.Subject = "ANA@ACME.EXAMPLE" }, true},
		"nobody named":             {func(o *holdpoint.Object) { o.Initiator, o.Editors, o.Subject = "", []string{""}, "" }, false},
		"longer address, not mine": {func(o *holdpoint.Object) { o.Initiator = "ana@acme.example.com" }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := gate()
			tt.change(&o)
			d := holdpoint.Permit(person(gateRole), holdpoint.ActionApprovalDecide, o)
			require.Equal(t, tt.denied, d != nil, "%+v", d)
			if d != nil {
				require.Equal(t, "separation of duties", d.Right)
			}
			require.Nil(t, holdpoint.Permit(person(gateRole), holdpoint.ActionApprovalView, o), "it does not block viewing")
			require.Nil(t, holdpoint.Permit(person(gateRole), holdpoint.ActionRunContent, o), "nor the content")
		})
	}

	nameless := person(gateRole)
	nameless.Email = ""
	require.NotNil(t, holdpoint.Permit(nameless, holdpoint.ActionApprovalDecide, gate()), "who cannot be compared cannot decide")
}

func TestAssuranceOfTheGate(t *testing.T) {
	tests := []struct {
		actor, gate  string
		view, decide bool
	}{
		{"link", "link", true, true},
		{"login", "link", true, true},
		{"link", "login", false, false},
		{"login", "login", true, true},
		{"", "link", false, false},
		{"login", "sso", true, false},
		{"login", "", true, false},
		{"link", "", false, false},
		{"sso", "sso", false, false},
	}
	for _, tt := range tests {
		t.Run(tt.actor+" at "+tt.gate, func(t *testing.T) {
			a, o := person(gateRole, "operator", "auditor"), gate()
			a.Assurance, o.Assurance = tt.actor, tt.gate
			require.Equal(t, tt.view, holdpoint.Permit(a, holdpoint.ActionApprovalView, o) == nil)
			require.Equal(t, tt.view, holdpoint.Permit(a, holdpoint.ActionRunContent, o) == nil)
			require.Equal(t, tt.decide, holdpoint.Permit(a, holdpoint.ActionApprovalDecide, o) == nil)
			require.Equal(t, tt.actor == "login", holdpoint.Permit(a, holdpoint.ActionRunCancel, o) == nil, "a link opens nothing else")
		})
	}
}

func TestAGateWithoutRolesHasNoDecider(t *testing.T) {
	o := gate()
	for _, roles := range [][]string{nil, {""}, {"(any)"}, {"(gate)"}} {
		o.GateRoles = roles
		require.NotNil(t, holdpoint.Permit(person(append(allRoles, "")...), holdpoint.ActionApprovalDecide, o), "%q", roles)
	}
}

func TestWorkSeesTheContentOfItsOwnRuns(t *testing.T) {
	key := holdpoint.Actor{Kind: "machine", ID: "k-1", Tenant: "acme", Scopes: []holdpoint.Scope{"work", "read"}, How: "key"}
	o := holdpoint.Object{Tenant: "acme"}
	require.Equal(t, "scope content", holdpoint.Permit(key, holdpoint.ActionRunContent, o).Right)
	o.WorkedBy = []string{"k-2", "k-1"}
	require.Nil(t, holdpoint.Permit(key, holdpoint.ActionRunContent, o))
	key.Scopes = []holdpoint.Scope{"read"}
	require.NotNil(t, holdpoint.Permit(key, holdpoint.ActionRunContent, o))
}

func TestSwitchScopes(t *testing.T) {
	for name, ok := range map[string]bool{
		"tenant": true, "messages": true, "workflow:ticket-reply": true, "connector:crm": true, "type:email.reply": true,
		"": false, "global": false, "workflow:": false, "workflow": false, "planet:mars": false, "Tenant": false,
	} {
		o := gate()
		o.Switch = name
		require.Equal(t, ok, holdpoint.Permit(person("switch-owner"), holdpoint.ActionSwitchSet, o) == nil, name)
	}
	o := gate()
	o.Switch, o.SoleTenant = "global", true
	require.Nil(t, holdpoint.Permit(person("switch-owner"), holdpoint.ActionSwitchSet, o))
	require.NotNil(t, holdpoint.Permit(person("operator"), holdpoint.ActionSwitchSet, o))
}

func TestATokenMintsNoMoreThanItHolds(t *testing.T) {
	a, o := person(), gate()
	a.How, a.Scopes, o.Scopes = "token", []holdpoint.Scope{"read", "decide"}, []holdpoint.Scope{"decide"}
	require.Nil(t, holdpoint.Permit(a, holdpoint.ActionTokenOwn, o))
	o.Scopes = []holdpoint.Scope{"decide", "admin"}
	require.Equal(t, "scope admin", holdpoint.Permit(a, holdpoint.ActionTokenOwn, o).Right)

	local := holdpoint.Actor{Kind: "local", ID: "local:ops", Tenant: "acme"}
	require.Nil(t, holdpoint.Permit(local, holdpoint.ActionTokenOwn, o))
	o.Scopes = []holdpoint.Scope{"work"}
	require.NotNil(t, holdpoint.Permit(local, holdpoint.ActionTokenOwn, o), "work is for machines")
}

func TestDenialNamesTheNearestMissingRight(t *testing.T) {
	o := gate()
	o.GateRoles = []string{"support-lead", "finance-lead"}
	require.Equal(t, "role support-lead or finance-lead", holdpoint.Permit(person("physician"), holdpoint.ActionApprovalDecide, o).Right)

	require.Equal(t, "role support-lead or finance-lead", holdpoint.Permit(person("physician"), holdpoint.ActionApprovalView, o).Right, "the first row of several")

	a := person("auditor")
	a.Scopes = []holdpoint.Scope{"switch"}
	require.Equal(t, "scope read or content", holdpoint.Permit(a, holdpoint.ActionApprovalView, o).Right, "the role is there, the scope is not")

	key := holdpoint.Actor{Kind: "machine", ID: "k-1", Tenant: "acme", Scopes: holdpoint.MachineScopes}
	require.Equal(t, "a person", holdpoint.Permit(key, holdpoint.ActionApprovalDecide, o).Right)
	require.Equal(t, "a machine key", holdpoint.Permit(person("operator"), holdpoint.ActionRunWork, o).Right)
	require.Equal(t, "a known action", holdpoint.Permit(key, "run.delete", o).Right)
}

func ExamplePermit() {
	ana := holdpoint.Actor{
		Kind: holdpoint.ActorPerson, ID: "p-1", Email: "ana@acme.example", Tenant: "acme", Roles: []string{"support-lead"},
		Scopes: holdpoint.PersonScopes, Assurance: holdpoint.AssuranceLogin, How: holdpoint.HowSession,
	}
	approval := holdpoint.Object{Tenant: "acme", GateRoles: []string{"support-lead"}, Assurance: holdpoint.AssuranceLogin, Initiator: "bo@acme.example"}
	fmt.Println(holdpoint.Permit(ana, holdpoint.ActionApprovalDecide, approval) == nil)

	approval.Initiator = "Ana@acme.example"
	fmt.Println(holdpoint.Permit(ana, holdpoint.ActionApprovalDecide, approval).Why)
	// Output:
	// true
	// You started this run, so another person must decide it.
}

func ExampleDenial_Err() {
	key := holdpoint.Actor{Kind: holdpoint.ActorMachine, ID: "k-1", Tenant: "acme", Scopes: []holdpoint.Scope{holdpoint.ScopeRead}}
	err := holdpoint.Permit(key, holdpoint.ActionRunWork, holdpoint.Object{Tenant: "acme"}).Err()
	var e *holdpoint.Error
	fmt.Println(errors.As(err, &e), e.Code, e.Detail["right"])
	// Output: true insufficient_scope scope work
}

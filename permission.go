package holdpoint

import (
	"fmt"
	"slices"
	"strings"
)

// Action is one thing that somebody may want to see or do. Page, console, API and command line ask about the same
// actions, when they show a button and again when it is pressed.
type Action string

// The actions. Views show states and hashes only; whoever wants to see payloads, drafts or effect bytes asks for
// run.content as well.
const (
	ActionApprovalView      Action = "approval.view"      // state, digest, quorum and clocks of an approval
	ActionApprovalDecide    Action = "approval.decide"    // approve, reject or send back
	ActionApprovalWithdraw  Action = "approval.withdraw"  // take the question back
	ActionRunView           Action = "run.view"           // state, steps and hashes of a run
	ActionRunContent        Action = "run.content"        // payload, draft, effects and result of a run or its approval
	ActionRunWork           Action = "run.work"           // claim and every work call
	ActionRunReplace        Action = "run.replace"        // link a correction
	ActionRunCancel         Action = "run.cancel"         // end a run that waits for another attempt
	ActionStepResolve       Action = "step.resolve"       // say what became of an uncertain step
	ActionEffectView        Action = "effect.view"        // state, holds and attempts of an effect
	ActionEffectCancel      Action = "effect.cancel"      // end an effect that has not begun
	ActionEffectReconcile   Action = "effect.reconcile"   // look an unknown effect up now
	ActionEffectResolve     Action = "effect.resolve"     // record a verdict about an unknown effect
	ActionEffectReauthorise Action = "effect.reauthorise" // ask again about an effect held as expired
	ActionSwitchView        Action = "switch.view"        // read the switches
	ActionSwitchSet         Action = "switch.set"         // turn a switch on or off
	ActionPolicyView        Action = "policy.view"        // read policies
	ActionPolicyPropose     Action = "policy.propose"     // store a policy without activating it
	ActionPolicyActivate    Action = "policy.activate"    // move the active pointer
	ActionPeopleManage      Action = "people.manage"      // users and grants of the tenant
	ActionKeysManage        Action = "keys.manage"        // machine keys of the tenant
	ActionEvidenceView      Action = "evidence.view"      // the events, which carry no content
	ActionConnectorView     Action = "connector.view"     // connectors and their holds
	ActionConnectorRelease  Action = "connector.release"  // test, prove or release a connector
	ActionTokenOwn          Action = "token.own"          // mint or revoke a person's token
	ActionPasswordChange    Action = "password.change"    // change one's own password
)

// Scope bounds what a token can do. A scope never adds a right: a person's token works within that person's roles.
type Scope string

// The scopes. Machine keys hold work, read and content; people's tokens hold all but work.
const (
	ScopeWork    Scope = "work"
	ScopeRead    Scope = "read"
	ScopeContent Scope = "content"
	ScopeDecide  Scope = "decide"
	ScopeOperate Scope = "operate"
	ScopeSwitch  Scope = "switch"
	ScopeAdmin   Scope = "admin"
)

// MachineScopes are the scopes that a machine key may hold.
var MachineScopes = []Scope{ScopeWork, ScopeRead, ScopeContent}

// PersonScopes are the scopes that a person's token may hold. A console session holds all of them.
var PersonScopes = []Scope{ScopeRead, ScopeContent, ScopeDecide, ScopeOperate, ScopeSwitch, ScopeAdmin}

// The reserved roles. All other role names belong to policy.
const (
	RoleOperator    = "operator"
	RoleSwitchOwner = "switch-owner"
	RoleAuditor     = "auditor"
	RolePolicyOwner = "policy-owner"
	RoleTenantAdmin = "tenant-admin"
)

// ReservedRoles lists the roles whose meaning Holdpoint fixes.
var ReservedRoles = []string{RoleOperator, RoleSwitchOwner, RoleAuditor, RolePolicyOwner, RoleTenantAdmin}

// The kinds of actor. A system actor (sweeper, dispatcher) acts by transition tables and is never permitted anything.
const (
	ActorMachine = "machine"
	ActorPerson  = "person"
	ActorLocal   = "local" // a command that opens the store itself
	ActorSystem  = "system"
)

// The ways in which an actor proves who it is.
const (
	HowSession = "session"
	HowToken   = "token"
	HowKey     = "key"
	HowLink    = "link"
)

// The assurances, weakest first. Any other value is weaker than all of them in an actor and unreachable in a gate.
const (
	AssuranceLink  = "link"  // possession of an address
	AssuranceLogin = "login" // a local account's password, or a token minted after it
)

// Actor is who asks. The zero Actor may do nothing.
type Actor struct {
	Kind               string   // ActorMachine, ActorPerson, ActorLocal or ActorSystem
	ID                 string   // of the person or key; `local:` and the OS user
	Email              string   // of a person
	Tenant             string   // the only tenant in which the actor has rights
	Roles              []string // of a person: policy and grants together
	Scopes             []Scope  // of the key or token; a session holds PersonScopes, an opened link ScopeDecide
	Assurance          string   // of a person: AssuranceLink, AssuranceLogin or ""
	How                string   // HowSession, HowToken, HowKey or HowLink
	Disabled           bool     // the account is disabled or the key revoked
	MustChangePassword bool     // nothing but password.change until the person has done so
}

// Object is what the actor asks about. Tenant is always needed, the other fields by the actions that name them.
type Object struct {
	Tenant     string
	GateRoles  []string // approval.*, run.content: who the gate asks; any one role suffices
	Assurance  string   // approval.*, run.content: what the gate asks
	Initiator  string   // approval.decide: e-mail or id of who started the run; "" if policy names none
	Editors    []string // approval.decide: who edited the draft, or brought the payload of a correction
	Subject    string   // approval.decide: whose data it is
	WorkedBy   []string // run.content: ids of the keys whose claims the run has served
	Switch     string   // switch.set: `global`, `tenant`, `messages`, `workflow:NAME`, `connector:NAME` or `type:NAME`
	SoleTenant bool     // switch.set: this instance has one tenant, whose switch owners own `global` too
	Scopes     []Scope  // token.own: what the new token is to hold
}

// Denial says what is missing. A nil Denial is a permission.
type Denial struct {
	Code  Code   // forbidden, insufficient_scope, password_change, unauthenticated, or not_found for another tenant's object
	Right string // the missing right, for example "role support-lead" or "scope decide"
	Why   string // one sentence for people
}

// Err is the denial as an *Error with the detail "right", or nil for a nil Denial.
func (d *Denial) Err() error {
	if d == nil {
		return nil
	}
	return (&Error{Code: d.Code, Message: d.Why}).With("right", d.Right)
}

// Permit reports whether a may do action to o: nil if one row of Permissions says so, else what is missing. It denies
// by default: an unknown action, kind, assurance, switch scope or rule, another tenant and a disabled actor get nothing.
// The separation of duties blocks deciding, never viewing.
func Permit(a Actor, action Action, o Object) *Denial {
	if d := a.barred(action, o); d != nil {
		return d
	}
	var nearest *Denial
	passed := -1
	for _, p := range Permissions {
		if p.Action != action || p.Kind != a.Kind {
			continue
		}
		d, n := p.refuse(a, o)
		if d == nil {
			return nil
		}
		if n > passed {
			nearest, passed = d, n
		}
	}
	if nearest == nil {
		return wrongKind(action)
	}
	return nearest
}

// barred is what stops an actor whatever the table says.
func (a Actor) barred(action Action, o Object) *Denial {
	switch {
	case a.ID == "":
		return &Denial{CodeUnauthenticated, "an identity", "Sign in, or send a token."}
	case a.Disabled:
		return &Denial{CodeForbidden, "an enabled account", "This account or key is disabled; ask a tenant administrator."}
	case a.Tenant == "" || a.Tenant != o.Tenant:
		return &Denial{CodeNotFound, "this tenant", "There is no such thing in your tenant."}
	case a.MustChangePassword && action != ActionPasswordChange:
		return &Denial{CodePasswordChange, "a password of your own", "Change the password that you were given before anything else."}
	}
	return nil
}

// wrongKind is the denial for an actor whose kind has no row for action.
func wrongKind(action Action) *Denial {
	names := map[string]string{ActorMachine: "a machine key", ActorPerson: "a person", ActorLocal: "a local command"}
	var may []string
	for _, p := range Permissions {
		if p.Action == action && !slices.Contains(may, names[p.Kind]) {
			may = append(may, names[p.Kind])
		}
	}
	if len(may) == 0 {
		return &Denial{CodeForbidden, "a known action", "Nobody may do this: the permission table does not name it."}
	}
	right := strings.Join(may, " or ")
	return forbid(right, "Only %s may do this.", right)
}

// refuse returns what p misses in a and o and how many conditions held before it, or nil.
func (p Permission) refuse(a Actor, o Object) (*Denial, int) {
	if d := p.refuseRole(a, o); d != nil {
		return d, 0
	}
	if len(p.Scopes) > 0 && !intersect(p.Scopes, a.Scopes) {
		right := "scope " + join(p.Scopes)
		return &Denial{CodeInsufficientScope, right, fmt.Sprintf("This token lacks the %s; use one that has it.", right)}, 1
	}
	if d := p.refuseAssurance(a, o); d != nil {
		return d, 2
	}
	for i, r := range p.Rules {
		if d := r.refuse(a, o); d != nil {
			return d, 3 + i
		}
	}
	return nil, 0
}

func (p Permission) refuseRole(a Actor, o Object) *Denial {
	want := p.Roles
	switch {
	case len(want) == 0:
		return nil
	case want[0] == RoleAny:
		if slices.ContainsFunc(a.Roles, func(r string) bool { return r != "" }) {
			return nil
		}
		return forbid("a role", "This needs a role in this tenant; ask a tenant administrator to grant one.")
	case want[0] == RoleOfGate:
		want = slices.DeleteFunc(slices.Clone(o.GateRoles), func(r string) bool { return r == "" })
		if len(want) == 0 {
			return forbid("a role of the gate", "This gate names no role, so nobody may answer it.")
		}
	}
	if intersect(want, a.Roles) {
		return nil
	}
	right := "role " + join(want)
	return forbid(right, "This needs the %s; ask a tenant administrator to grant it.", right)
}

func (p Permission) refuseAssurance(a Actor, o Object) *Denial {
	ok := false
	switch p.Assurance {
	case AssuranceNone:
		ok = true
	case AssuranceLogin:
		ok = a.Assurance == AssuranceLogin
	case AssuranceView:
		ok = a.Assurance == AssuranceLogin || a.Assurance == AssuranceLink && o.Assurance == AssuranceLink
	case AssuranceOfGate:
		switch o.Assurance {
		case AssuranceLink:
			ok = a.Assurance == AssuranceLink || a.Assurance == AssuranceLogin
		case AssuranceLogin:
			ok = a.Assurance == AssuranceLogin
		default:
			return forbid("assurance "+o.Assurance, "This gate asks for an assurance that nobody can reach here.")
		}
	}
	if ok {
		return nil
	}
	return forbid("assurance "+AssuranceLogin, "This needs a log-in; a link alone is not enough.")
}

func (r Rule) refuse(a Actor, o Object) *Denial {
	switch r {
	case RuleDuties:
		return refuseDuties(a, o)
	case RuleWorksOn:
		if slices.Contains(o.WorkedBy, a.ID) {
			return nil
		}
		return &Denial{CodeInsufficientScope, "scope content", "This key does not work on the run, so it needs the scope content."}
	case RuleSwitch:
		return refuseSwitch(o)
	case RuleOwnScopes:
		for _, s := range o.Scopes {
			if !slices.Contains(PersonScopes, s) || a.Kind == ActorPerson && !slices.Contains(a.Scopes, s) {
				return &Denial{CodeInsufficientScope, "scope " + string(s), "A token may hold only scopes for people, and no more than the one it is minted with."}
			}
		}
		return nil
	case RuleSession:
		if a.How == HowSession {
			return nil
		}
		return forbid("a session", "Sign in with your password to change it.")
	}
	return forbid(string(r), "The permission table names a rule that nobody can meet.")
}

func refuseDuties(a Actor, o Object) *Denial {
	const right = "separation of duties"
	switch {
	case a.Email == "":
		return forbid("an e-mail address", "Your account has no e-mail address to tell your part in this run by.")
	case a.is(o.Initiator):
		return forbid(right, "You started this run, so another person must decide it.")
	case slices.ContainsFunc(o.Editors, a.is):
		return forbid(right, "You edited this draft, so another person must decide it.")
	case a.is(o.Subject):
		return forbid(right, "This run is about you, so another person must decide it.")
	}
	return nil
}

func refuseSwitch(o Object) *Denial {
	kind, name, named := strings.Cut(o.Switch, ":")
	switch {
	case o.Switch == "global" && !o.SoleTenant:
		return forbid("owner of global", "The switch global belongs to the instance, not to one of its tenants; use the switch tenant.")
	case o.Switch == "global", o.Switch == "tenant", o.Switch == "messages":
		return nil
	case named && name != "" && slices.Contains([]string{"workflow", "connector", "type"}, kind):
		return nil
	}
	return forbid("a known switch", "Name a switch: global, tenant, messages, workflow:NAME, connector:NAME or type:NAME.")
}

// is reports whether who names a, by id or by e-mail address, whatever the case and with or without a display name.
func (a Actor) is(who string) bool {
	if i := strings.LastIndexByte(who, '<'); i >= 0 {
		who, _, _ = strings.Cut(who[i+1:], ">")
	}
	who = strings.TrimSpace(who)
	return who != "" && (strings.EqualFold(who, a.ID) || strings.EqualFold(who, strings.TrimSpace(a.Email)))
}

func forbid(right, format string, args ...any) *Denial {
	return &Denial{CodeForbidden, right, fmt.Sprintf(format, args...)}
}

func intersect[S ~[]E, E comparable](a, b S) bool {
	return slices.ContainsFunc(a, func(e E) bool { return slices.Contains(b, e) })
}

func join[S ~string](words []S) string {
	parts := make([]string, len(words))
	for i, w := range words {
		parts[i] = string(w)
	}
	return strings.Join(parts, " or ")
}

// Rule is a condition of a row that depends on actor and object together. Its text is what the printed table shows.
type Rule string

// The rules.
const (
	RuleDuties    Rule = "neither initiator nor editor nor subject"
	RuleWorksOn   Rule = "the run is worked by this key"
	RuleSwitch    Rule = "a known switch; global only while there is one tenant"
	RuleOwnScopes Rule = "scopes for people, at most one's own"
	RuleSession   Rule = "signed in with a session"
)

// Words that a row uses in place of role names.
const (
	RoleAny    = "(any)"  // at least one role in the tenant
	RoleOfGate = "(gate)" // one of the roles that the gate names
)

// What a row asks of a person's assurance.
const (
	AssuranceNone   = ""       // nothing: machines and local commands have none
	AssuranceView   = "(view)" // a log-in, or a link where the gate says link
	AssuranceOfGate = "(gate)" // at least what the gate says
)

// Permission is one row: an actor of Kind who holds one of Roles and one of Scopes with Assurance may do Action where
// all Rules hold. Empty Roles, Scopes or Rules ask nothing.
type Permission struct {
	Action    Action
	Kind      string
	Roles     []string
	Scopes    []Scope
	Assurance string
	Rules     []Rule
}

// String prints the row for people.
func (p Permission) String() string {
	return fmt.Sprintf("%-19s %-8s %-22s %-30s %-7s %s", p.Action, p.Kind,
		orDash(join(p.Roles)), orDash(join(p.Scopes)), orDash(p.Assurance), orDash(join(p.Rules)))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Permissions is the whole table: what no row allows is denied. It is read-only.
var Permissions = []Permission{
	{ActionApprovalView, ActorMachine, nil, []Scope{ScopeRead}, AssuranceNone, nil},
	{ActionApprovalView, ActorPerson, []string{RoleOfGate}, []Scope{ScopeRead, ScopeContent, ScopeDecide}, AssuranceView, nil},
	{ActionApprovalView, ActorPerson, []string{RoleOperator}, []Scope{ScopeRead, ScopeOperate}, AssuranceLogin, nil},
	{ActionApprovalView, ActorPerson, []string{RoleAuditor}, []Scope{ScopeRead, ScopeContent}, AssuranceLogin, nil},
	{ActionApprovalDecide, ActorPerson, []string{RoleOfGate}, []Scope{ScopeDecide}, AssuranceOfGate, []Rule{RuleDuties}},
	{ActionApprovalWithdraw, ActorPerson, []string{RoleOperator}, []Scope{ScopeOperate}, AssuranceLogin, nil},

	{ActionRunView, ActorMachine, nil, []Scope{ScopeWork, ScopeRead}, AssuranceNone, nil},
	{ActionRunView, ActorPerson, []string{RoleAny}, []Scope{ScopeRead, ScopeContent, ScopeDecide, ScopeOperate}, AssuranceLogin, nil},
	{ActionRunContent, ActorMachine, nil, []Scope{ScopeContent}, AssuranceNone, nil},
	{ActionRunContent, ActorMachine, nil, []Scope{ScopeWork}, AssuranceNone, []Rule{RuleWorksOn}},
	{ActionRunContent, ActorPerson, []string{RoleOfGate}, []Scope{ScopeContent, ScopeDecide}, AssuranceView, nil},
	{ActionRunContent, ActorPerson, []string{RoleAuditor}, []Scope{ScopeContent}, AssuranceLogin, nil},
	{ActionRunWork, ActorMachine, nil, []Scope{ScopeWork}, AssuranceNone, nil},
	{ActionRunReplace, ActorPerson, []string{RoleOperator}, []Scope{ScopeOperate}, AssuranceLogin, nil},
	{ActionRunCancel, ActorPerson, []string{RoleOperator}, []Scope{ScopeOperate}, AssuranceLogin, nil},
	{ActionStepResolve, ActorPerson, []string{RoleOperator}, []Scope{ScopeOperate}, AssuranceLogin, nil},

	{ActionEffectView, ActorMachine, nil, []Scope{ScopeWork, ScopeRead}, AssuranceNone, nil},
	{ActionEffectView, ActorPerson, []string{RoleAny}, []Scope{ScopeRead, ScopeContent, ScopeDecide, ScopeOperate}, AssuranceLogin, nil},
	{ActionEffectCancel, ActorPerson, []string{RoleOperator}, []Scope{ScopeOperate}, AssuranceLogin, nil},
	{ActionEffectReconcile, ActorPerson, []string{RoleOperator}, []Scope{ScopeOperate}, AssuranceLogin, nil},
	{ActionEffectResolve, ActorPerson, []string{RoleOperator}, []Scope{ScopeOperate}, AssuranceLogin, nil},
	{ActionEffectReauthorise, ActorPerson, []string{RoleOperator}, []Scope{ScopeOperate}, AssuranceLogin, nil},

	{ActionSwitchView, ActorMachine, nil, []Scope{ScopeRead}, AssuranceNone, nil},
	{ActionSwitchView, ActorPerson, []string{RoleAny}, []Scope{ScopeRead, ScopeOperate, ScopeSwitch}, AssuranceLogin, nil},
	{ActionSwitchSet, ActorPerson, []string{RoleSwitchOwner}, []Scope{ScopeSwitch}, AssuranceLogin, []Rule{RuleSwitch}},

	{ActionPolicyView, ActorPerson, []string{RoleAny}, []Scope{ScopeRead, ScopeAdmin}, AssuranceLogin, nil},
	{ActionPolicyView, ActorLocal, nil, nil, AssuranceNone, nil},
	{ActionPolicyPropose, ActorPerson, []string{RolePolicyOwner}, []Scope{ScopeAdmin}, AssuranceLogin, nil},
	{ActionPolicyPropose, ActorLocal, nil, nil, AssuranceNone, nil},
	{ActionPolicyActivate, ActorPerson, []string{RolePolicyOwner}, []Scope{ScopeAdmin}, AssuranceLogin, nil},
	{ActionPolicyActivate, ActorLocal, nil, nil, AssuranceNone, nil},

	{ActionPeopleManage, ActorPerson, []string{RoleTenantAdmin}, []Scope{ScopeAdmin}, AssuranceLogin, nil},
	{ActionPeopleManage, ActorLocal, nil, nil, AssuranceNone, nil},
	{ActionKeysManage, ActorPerson, []string{RoleTenantAdmin}, []Scope{ScopeAdmin}, AssuranceLogin, nil},
	{ActionKeysManage, ActorLocal, nil, nil, AssuranceNone, nil},
	{ActionTokenOwn, ActorPerson, nil, PersonScopes, AssuranceLogin, []Rule{RuleOwnScopes}},
	{ActionTokenOwn, ActorLocal, nil, nil, AssuranceNone, []Rule{RuleOwnScopes}},
	{ActionPasswordChange, ActorPerson, nil, nil, AssuranceLogin, []Rule{RuleSession}},

	{ActionEvidenceView, ActorMachine, nil, []Scope{ScopeRead}, AssuranceNone, nil},
	{ActionEvidenceView, ActorPerson, []string{RoleAuditor}, []Scope{ScopeRead, ScopeContent}, AssuranceLogin, nil},
	{ActionEvidenceView, ActorPerson, []string{RoleOperator}, []Scope{ScopeRead, ScopeOperate}, AssuranceLogin, nil},
	{ActionEvidenceView, ActorLocal, nil, nil, AssuranceNone, nil},

	{ActionConnectorView, ActorMachine, nil, []Scope{ScopeRead}, AssuranceNone, nil},
	{ActionConnectorView, ActorPerson, []string{RoleAny}, []Scope{ScopeRead, ScopeOperate, ScopeAdmin}, AssuranceLogin, nil},
	{ActionConnectorRelease, ActorPerson, []string{RoleOperator}, []Scope{ScopeOperate}, AssuranceLogin, nil},
}

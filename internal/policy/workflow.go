package policy

import (
	"encoding/json"
	"errors"
	"net/mail"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"go.yaml.in/yaml/v3"

	"github.com/holdpoint/holdpoint"
)

// Effect is the rule by which a draft becomes one external write, or one for each item of a list.
type Effect struct {
	Name        string
	Type        string // for example crm.note
	Connector   string
	Consequence string
	After       []string    // names of effects that must complete first
	Reversible  *Reversible // or nil

	target  text
	payload tree
	when    *expression // nil: always
	forEach *expression // nil: once
	as      string
	slotKey text
}

// Reversible says how an effect can be undone, and for how long.
type Reversible struct {
	By     string
	Within time.Duration
}

// assuranceFloors are the consequence classes of this version with the least assurance of their gate (R3.2).
var assuranceFloors = map[string]string{
	"internal_note":       AssuranceLink,
	"crm_change":          AssuranceLogin,
	"customer_message":    AssuranceLogin,
	"account_change":      AssuranceLogin,
	"refund":              AssuranceLogin,
	"operational_finance": AssuranceLogin,
}

var (
	separatedClasses = []string{"account_change", "refund", "operational_finance"}
	qualifiedClasses = []string{"medical", "legal", "regulated_finance", "child_safety", "structural"}
)

func (r *reader) roles(n *yaml.Node) map[string]Role {
	all := map[string]Role{}
	for _, e := range r.object(n, `"roles"`).entries {
		if !r.name(e.key, "a role") {
			continue
		}
		o := r.object(e.value, "role "+strconv.Quote(e.key.Value))
		o.refuse("groups", "list people under users")
		o.refuse("qualification", "no consequence class of this version asks for one")
		role := Role{}
		users, nodes := o.strings("users")
		for i, u := range users {
			u = strings.ToLower(u)
			if a, err := mail.ParseAddress(u); err != nil || a.Address != u {
				o.fail(nodes[i], "invalid_value", "name people by their e-mail address; %q is none", u)
			} else if !slices.Contains(role.Users, u) {
				role.Users = append(role.Users, u)
			}
		}
		o.close()
		all[e.key.Value] = role
	}
	return all
}

func (r *reader) workflows(n *yaml.Node, p *Policy, files map[string][]byte, opts Options) map[string]*Workflow {
	all := map[string]*Workflow{}
	for _, e := range r.object(n, `"workflows"`).entries {
		if r.name(e.key, "a workflow") {
			all[e.key.Value] = r.workflow(e.key.Value, e.value, p, files, opts)
		}
	}
	return all
}

func (r *reader) workflow(name string, n *yaml.Node, p *Policy, files map[string][]byte, opts Options) *Workflow {
	o := r.object(n, "workflow "+strconv.Quote(name))
	o.refuse("model", "call models from the workflow and submit their output as a draft")
	o.refuse("callback", "let the workflow ask for the run, or send alerts to a webhook channel")
	o.refuse("retention", "content is kept until a later version purges it")
	w := &Workflow{
		Name:        name,
		KeyScope:    o.string("key_scope", name),
		Repairs:     o.integer("repairs", 2, 0, 10),
		Subject:     o.pointer("subject"),
		ExpiredKeep: o.duration("expired_keep", 7*24*time.Hour),
	}
	if k := o.has("key_scope"); k != nil {
		r.name(k, "a key scope")
	}
	w.ContractFile, w.ContractSchema = o.contract(files, opts)
	if f := o.has("fingerprint"); f != nil {
		fp := o.object(f, `"fingerprint" of `+o.what)
		pointers, nodes := fp.strings("ignore")
		for i := range pointers {
			if ptr := fp.reader.pointer(nodes[i], `"ignore"`); ptr != "" {
				w.Ignore = append(w.Ignore, ptr)
			}
		}
		fp.close()
	}
	if i := o.has("initiator"); i != nil {
		if w.Initiator = o.reader.string(i, `"initiator"`); w.Initiator != InitiatorCaller && !isPointer(w.Initiator) {
			o.fail(i, "invalid_value", "\"initiator\" is a JSON Pointer such as /created_by, or `caller`")
		}
	}
	w.Lease = o.lease()
	w.Retry = o.retry()
	w.Alerts = o.channelNames("alerts", p)
	effects := o.object(o.has("effects"), `"effects" of `+o.what)
	for _, e := range effects.entries {
		if r.name(e.key, "an effect") {
			w.Effects = append(w.Effects, r.effect(e.key.Value, e.value, p))
		}
	}
	r.order(effects, w.Effects)
	o.gate(w, effects, p)
	o.close()
	return w
}

func (o *object) contract(files map[string][]byte, opts Options) (name string, schema []byte) {
	n := o.need("contract", "name the JSON Schema file that drafts must meet")
	if n == nil {
		return "", nil
	}
	if name = o.reader.string(n, `"contract"`); name == "" {
		return "", nil
	}
	if !isFilePath(name) {
		o.fail(n, "invalid_value", "name the contract by a path below the policy file")
		return name, nil
	}
	schema, ok := files[name]
	if !ok {
		o.fail(n, "missing_file", "add the file %s", name)
		return name, nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(schema, &object); err != nil || object == nil {
		o.fail(n, "invalid_contract", "make %s a JSON Schema object: it is not a JSON object", name)
	} else if opts.CheckContract != nil {
		if err := opts.CheckContract(name, schema); err != nil {
			o.fail(n, "invalid_contract", "correct the schema %s: %s", name, sentence(err))
		}
	}
	return name, schema
}

// sentence gives an error's own words, without its code and its cause.
func sentence(err error) string {
	if known := (*holdpoint.Error)(nil); errors.As(err, &known) {
		return known.Message
	}
	return err.Error()
}

func (o *object) lease() Lease {
	l := o.object(o.has("lease"), `"lease" of `+o.what)
	v := Lease{
		Initial: 5 * time.Minute, Cap: l.duration("cap", 30*time.Minute),
		StealAlert: l.integer("steal_alert", 2, 1, 100), StealCap: l.integer("steal_cap", 5, 1, 100),
	}
	initial := l.has("initial")
	if v.Auto = initial != nil && initial.Value == "auto"; initial != nil && !v.Auto {
		v.Initial = l.reader.duration(initial, `"initial"`)
	}
	if v.Initial > v.Cap && !v.Auto {
		l.fail(l.node, "invalid_value", "%s: make cap at least as long as initial", l.what)
	}
	v.Initial = min(v.Initial, v.Cap)
	l.close()
	return v
}

func (o *object) retry() Retry {
	t := o.object(o.has("retry"), `"retry" of `+o.what)
	run := t.object(t.has("run"), `"run" of `+t.what)
	effect := t.object(t.has("effect"), `"effect" of `+t.what)
	v := Retry{
		RunAttempts: run.integer("attempts", 3, 1, 100), RunBudget: run.duration("budget", 2*time.Hour),
		EffectAttempts: effect.integer("attempts", 8, 1, 100), EffectBudget: effect.duration("budget", 6*time.Hour),
	}
	run.close()
	effect.close()
	t.close()
	return v
}

func (o *object) channelNames(key string, p *Policy) []string {
	names, nodes := o.strings(key)
	for i, name := range names {
		if p.Channels[name] == nil {
			o.fail(nodes[i], "unknown_channel", "declare the channel %q under channels", name)
		}
	}
	return names
}

var (
	typeForm       = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	identifierForm = regexp.MustCompile(`^[a-z][a-zA-Z0-9_]{0,31}$`)
	reservedNames  = []string{
		"event", "draft", "run", "effect", "response", "status", "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for",
		"function", "if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while",
	}
)

func (r *reader) effect(name string, n *yaml.Node, p *Policy) *Effect {
	o := r.object(n, "effect "+strconv.Quote(name))
	o.refuse("undo", "say under reversible how people undo it")
	e := &Effect{Name: name, Type: o.string("type", ""), Connector: o.string("connector", ""), Consequence: o.string("consequence", "")}
	if t := o.need("type", "name the kind of write, for example crm.note"); t != nil && e.Type != "" && !typeForm.MatchString(e.Type) {
		o.fail(t, "invalid_value", "a type is lower-case letters, digits, dots and dashes, for example crm.note")
	}
	if c := o.need("connector", "name a connector"); c != nil && e.Connector != "" && p.Connectors[e.Connector] == nil {
		o.fail(c, "unknown_connector", "declare the connector %q under connectors", e.Connector)
	}
	if c := o.need("consequence", "name the consequence class, for example internal_note"); c != nil && e.Consequence != "" {
		_, known := assuranceFloors[e.Consequence]
		switch {
		case slices.Contains(qualifiedClasses, e.Consequence):
			o.fail(c, later, "consequence %q is not in this version: let such cases go to a qualified person outside Holdpoint", e.Consequence)
		case !known:
			o.fail(c, "unknown_consequence", "use one of internal_note, crm_change, customer_message, account_change, refund, operational_finance; %q is no consequence class", e.Consequence)
		}
	}
	e.After, _ = o.strings("after")

	env, err := workflowEnv()
	if err != nil {
		o.fail(n, "expression", "the expression language cannot start")
		return e
	}
	if e.forEach = o.expressionOf("for_each", env, cel.ListType(cel.DynType), "gives a list"); o.has("for_each") != nil {
		if e.as = o.string("as", "item"); e.as != "" && (!identifierForm.MatchString(e.as) || slices.Contains(reservedNames, e.as)) {
			o.fail(o.has("as"), "invalid_value", "\"as\" is a lower-case name that no other variable and no word of the language has")
		} else if extended, err := env.Extend(cel.Variable(e.as, cel.DynType)); err == nil && e.as != "" {
			env = extended
		}
		if k := o.need("slot_key", "say what tells the items apart, for example ${item.email}"); k != nil {
			e.slotKey = o.template(k, "slot_key", env)
			if !slices.ContainsFunc(e.slotKey, func(p part) bool { return p.expr != nil && slices.Contains(p.expr.reads, e.as) }) && e.slotKey != nil {
				o.fail(k, "invalid_value", "\"slot_key\" reads %s, so that each item has a slot of its own", e.as)
			}
		}
	} else {
		for _, key := range []string{"as", "slot_key"} {
			if stray := o.has(key); stray != nil {
				o.fail(stray, "invalid_value", "%q stands beside for_each", key)
			}
		}
	}
	e.when = o.condition("when", env)
	if t := o.need("target", "say whom or what the write is about"); t != nil {
		e.target = o.template(t, "target", env)
	}
	e.payload = tree{raw: "{}"}
	if b := o.has("payload"); b != nil {
		e.payload = r.tree(b, place{env: env, what: `"payload" of ` + o.what})
	}
	if v := o.has("reversible"); v != nil {
		rev := o.object(v, `"reversible" of `+o.what)
		e.Reversible = &Reversible{By: rev.string("by", ""), Within: rev.duration("within", 0)}
		rev.need("by", "say how people undo it")
		rev.need("within", "say for how long it can be undone")
		rev.close()
	}
	o.close()
	return e
}

func (o *object) template(n *yaml.Node, key string, env *cel.Env) text {
	what := strconv.Quote(key) + " of " + o.what
	if o.reader.string(n, what) == "" {
		return nil
	}
	return o.text(n, place{env: env, what: what})
}

// order checks that `after` names effects of the same workflow and never leads back to where it began.
func (r *reader) order(effects *object, all []*Effect) {
	byName := map[string]*Effect{}
	for _, e := range all {
		byName[e.Name] = e
	}
	for _, e := range all {
		n := child(effects.has(e.Name), "after")
		for _, name := range e.After {
			if byName[name] == nil {
				r.fail(n, "unknown_effect", "effect %q waits for %q, which this workflow does not have", e.Name, name)
			}
		}
		if reaches(byName, e.Name, e.Name, map[string]bool{}) {
			r.fail(n, "cycle", "effect %q waits for itself: break the circle in after", e.Name)
		}
	}
}

func reaches(byName map[string]*Effect, from, to string, seen map[string]bool) bool {
	if byName[from] == nil || seen[from] {
		return false
	}
	seen[from] = true
	for _, name := range byName[from].After {
		if name == to || reaches(byName, name, to, seen) {
			return true
		}
	}
	return false
}

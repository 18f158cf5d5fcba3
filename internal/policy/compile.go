package policy

import (
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	"go.yaml.in/yaml/v3"
)

// place says what may stand in the templates of one part of the document.
type place struct {
	env     *cel.Env // nil: no expressions
	secrets bool
	what    string
}

// text compiles the template of one string.
func (r *reader) text(n *yaml.Node, at place) text {
	pieces, err := splitTemplate(n.Value)
	if err != nil {
		r.fail(n, "expression", "%s: %v", at.what, err)
		return nil
	}
	t := text{}
	for i, piece := range pieces {
		switch {
		case i%2 == 0:
			if piece != "" {
				t = append(t, part{literal: piece})
			}
		case secretLike.MatchString(piece):
			if r.secret(n, piece, at) {
				t = append(t, part{secret: secret(piece)})
			}
		case at.env == nil:
			r.fail(n, "expression", "%s holds no expressions: write a constant or name a secret", at.what)
		default:
			if x := r.expression(n, piece, at); x != nil {
				t = append(t, part{expr: x})
			}
		}
	}
	return t
}

// String gives the template as the document writes it.
func (t text) String() string {
	var b strings.Builder
	for _, p := range t {
		switch {
		case p.expr != nil:
			b.WriteString("${" + p.expr.source + "}")
		case p.secret != "":
			b.WriteString("${" + string(p.secret) + "}")
		default:
			b.WriteString(p.literal)
		}
	}
	return b.String()
}

// source gives the template as JSON, for hashes.
func (t *tree) source(b []byte) []byte {
	switch t.kind {
	case treeText:
		return appendString(b, t.text.String())
	case treeList:
		b = append(b, '[')
		for i := range t.list {
			b = append(t.list[i].source(b), ',')
		}
		return append(b, ']')
	case treeMap:
		b = append(b, '{')
		for i := range t.members {
			b = append(appendString(b, t.members[i].name), ':')
			b = append(t.members[i].value.source(b), ',')
		}
		return append(b, '}')
	}
	return append(b, t.raw...)
}

func (r *reader) expression(n *yaml.Node, source string, at place) *expression {
	if at.env == nil {
		return nil
	}
	x, err := compile(at.env, source)
	if err != nil {
		r.fail(n, "expression", "%s: correct ${%s}: %v", at.what, shorten(source), err)
		return nil
	}
	return x
}

func shorten(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if runes := []rune(s); len(runes) > 80 {
		return string(runes[:80]) + "…"
	}
	return s
}

func (r *reader) secret(n *yaml.Node, ref string, at place) bool {
	kind, name, _ := strings.Cut(ref, ":")
	switch {
	case !at.secrets:
		r.fail(n, "secret_not_allowed", "%s: secrets stand only in connectors and channels", at.what)
	case kind == "env" && !envName.MatchString(name):
		r.fail(n, "invalid_value", "%s: write ${env:NAME} with letters, digits and underscores", at.what)
	case kind == "env" && strings.HasPrefix(name, "HOLDPOINT_"):
		r.fail(n, "secret_not_allowed", "%s: the HOLDPOINT_ variables are the server's own; name another", at.what)
	case kind == "file" && (!strings.HasPrefix(name, "/") || hasControl(name) || strings.Contains(name, "/../")):
		r.fail(n, "invalid_value", "%s: write ${file:PATH} with an absolute path", at.what)
	default:
		return true
	}
	return false
}

// condition compiles an expression that stands alone and gives true or false.
func (o *object) condition(key string, env *cel.Env) *expression {
	return o.expressionOf(key, env, cel.BoolType, "gives true or false")
}

func (o *object) expressionOf(key string, env *cel.Env, want *cel.Type, advice string) *expression {
	n := o.has(key)
	if n == nil {
		return nil
	}
	what := strconv.Quote(key) + " of " + o.what
	source := strings.TrimSpace(n.Value)
	if n.Kind != yaml.ScalarNode || source == "" {
		o.fail(n, "invalid_value", "%s is an expression", what)
		return nil
	}
	x := o.expression(n, source, place{env: env, what: what})
	if x != nil && x.result.Kind() != want.Kind() && x.result.Kind() != cel.DynType.Kind() {
		o.fail(n, "expression", "%s %s, not %s", what, advice, x.result)
		return nil
	}
	return x
}

// tree compiles the template of a JSON value. Literal numbers keep the digits of the document.
func (r *reader) tree(n *yaml.Node, at place) tree {
	switch n.Kind {
	case yaml.SequenceNode:
		t := tree{kind: treeList}
		for _, c := range n.Content {
			t.list = append(t.list, r.tree(c, at))
		}
		return t
	case yaml.MappingNode:
		t := tree{kind: treeMap}
		o := r.object(n, at.what)
		for _, e := range o.entries {
			if strings.Contains(e.key.Value, "${") {
				r.fail(e.key, "expression", "%s: names are constants; put the expression into the value", at.what)
				continue
			}
			t.members = append(t.members, member{e.key.Value, r.tree(e.value, at)})
		}
		return t
	}
	switch n.Tag {
	case "!!null":
		return tree{raw: "null"}
	case "!!bool":
		return tree{raw: strings.ToLower(n.Value)}
	case "!!int", "!!float":
		if !jsonNumber.MatchString(n.Value) {
			r.fail(n, "invalid_value", "%s: write numbers the way JSON does, or quote the text", at.what)
		}
		return tree{raw: n.Value}
	}
	return tree{kind: treeText, text: r.text(n, at)}
}

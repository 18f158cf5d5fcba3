package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/holdpoint/holdpoint"
)

// Secrets gives the values of foreign secrets, which policy names and never holds.
type Secrets interface {
	Env(name string) (string, bool)
	File(path string) ([]byte, error)
}

// secret is a reference: "env:NAME" or "file:PATH".
type secret string

var (
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	secretLike = regexp.MustCompile(`^(env|file):`)
)

// value resolves the reference; one line end after a file's content is not part of it. An empty secret is a missing
// one. The error names the reference, never the value.
func (s secret) value(from Secrets) (string, error) {
	kind, name, _ := strings.Cut(string(s), ":")
	var v string
	ok := false
	if from != nil {
		if kind == "env" {
			v, ok = from.Env(name)
		} else if b, err := from.File(name); err == nil {
			v, ok = strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"), true
		}
	}
	if !ok || v == "" {
		return "", holdpoint.Errorf(holdpoint.CodeUnavailable, "provide the secret %s to this process", s)
	}
	return v, nil
}

// named stands for secrets by their names, for hashes.
type named struct{}

func (named) Env(name string) (string, bool)   { return "${env:" + name + "}", true }
func (named) File(path string) ([]byte, error) { return []byte("${file:" + path + "}"), nil }

// part is one piece of a text template: literal text, an expression or a secret.
type part struct {
	literal string
	expr    *expression
	secret  secret
}

// text is a template for one string.
type text []part

// splitTemplate cuts a template into literals and the insides of ${…}. Braces inside CEL strings and nested braces do
// not end an expression.
func splitTemplate(s string) (pieces []string, err error) {
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			return append(pieces, s), nil
		}
		end := expressionEnd(s[i+2:])
		if end < 0 {
			return nil, errors.New("close ${ with }")
		}
		pieces = append(pieces, s[:i], s[i+2:i+2+end])
		s = s[i+2+end+1:]
	}
}

// expressionEnd gives the index of the brace that ends an expression, or -1.
func expressionEnd(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '{':
			depth++
		case '}':
			if depth == 0 {
				return i
			}
			depth--
		case '"', '\'':
			n := quotedEnd(s[i:], c)
			if n < 0 {
				return -1
			}
			i += n
		}
	}
	return -1
}

// quotedEnd gives the index of the quote that closes the CEL string at the start of s, or -1.
func quotedEnd(s string, quote byte) int {
	if triple := strings.Repeat(string(quote), 3); strings.HasPrefix(s, triple) {
		if end := strings.Index(s[3:], triple); end >= 0 {
			return 3 + end + 2
		}
		return -1
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case quote:
			return i
		}
	}
	return -1
}

// secrets lists the references in a template.
func (t text) secrets() (names []string) {
	for _, p := range t {
		if p.secret != "" && !slices.Contains(names, string(p.secret)) {
			names = append(names, string(p.secret))
		}
	}
	return names
}

// each renders the parts in order and hands them to add together with whether they came from outside the document.
func (t text) each(vars map[string]any, s Secrets, add func(v string, foreign bool) error) error {
	for _, p := range t {
		v, foreign := p.literal, true
		var err error
		switch {
		case p.expr != nil:
			var value ref.Val
			if value, err = p.expr.eval(vars); err == nil {
				if v, err = asText(value); err != nil {
					err = fmt.Errorf("${%s} %w", p.expr.source, err)
				}
			}
		case p.secret != "":
			v, err = p.secret.value(s)
		default:
			foreign = false
		}
		if err == nil {
			err = add(v, foreign)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// render gives the string. Values are written as they are and never scanned again.
func (t text) render(vars map[string]any, s Secrets) (string, error) {
	var b strings.Builder
	err := t.each(vars, s, func(v string, _ bool) error { b.WriteString(v); return nil })
	return b.String(), err
}

// asText writes a scalar the way it stands inside a string. Null, lists and maps have no such form: an absent value
// must not become an empty word in a message.
func asText(v ref.Val) (string, error) {
	switch v := v.(type) {
	case types.String:
		return string(v), nil
	case number:
		return v.lexeme, nil
	case types.Bool, types.Int, types.Uint, types.Timestamp, types.Duration:
		if s, ok := v.ConvertToType(types.StringType).(types.String); ok {
			return string(s), nil
		}
	case types.Double:
		b, err := json.Marshal(float64(v))
		if err == nil {
			return string(b), nil
		}
	}
	return "", errors.New("is not text, a number or a truth value; inside a string only those can stand")
}

// tree is a template for a JSON value; members keep the document's order.
type tree struct {
	raw     string // a literal that is not a string, as JSON
	text    text   // a string, or exactly one expression
	list    []tree
	members []member
	kind    treeKind
}

type member struct {
	name  string
	value tree
}

type treeKind uint8

const (
	treeRaw treeKind = iota
	treeText
	treeList
	treeMap
)

func (t *tree) secrets() (names []string) {
	names = t.text.secrets()
	for i := range t.list {
		names = append(names, t.list[i].secrets()...)
	}
	for i := range t.members {
		names = append(names, t.members[i].value.secrets()...)
	}
	return names
}

// render appends the JSON value. The result cannot be broken open by what it carries: strings are always encoded.
func (t *tree) render(b []byte, vars map[string]any, s Secrets) ([]byte, error) {
	var err error
	switch t.kind {
	case treeText:
		if len(t.text) == 1 && t.text[0].expr != nil {
			v, err := t.text[0].expr.eval(vars)
			if err != nil {
				return nil, err
			}
			if b, err = appendJSON(b, v, 0); err != nil {
				return nil, fmt.Errorf("${%s} %w", t.text[0].expr.source, err)
			}
			return b, nil
		}
		v, err := t.text.render(vars, s)
		return appendString(b, v), err
	case treeList:
		b = append(b, '[')
		for i := range t.list {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = t.list[i].render(b, vars, s); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case treeMap:
		b = append(b, '{')
		for i := range t.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, t.members[i].name), ':')
			if b, err = t.members[i].value.render(b, vars, s); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	}
	return append(b, t.raw...), nil
}

// maxDepth bounds nesting of documents and of rendered values.
const maxDepth = 100

// appendJSON writes a CEL value as JSON: numbers that were only handed on with their lexeme, members in sorted order.
func appendJSON(b []byte, v ref.Val, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, errors.New("is nested too deeply")
	}
	switch v := v.(type) {
	case types.Null:
		return append(b, "null"...), nil
	case types.String:
		return appendString(b, string(v)), nil
	case types.Timestamp, types.Duration:
		s, err := asText(v)
		return appendString(b, s), err
	case types.Bool, types.Int, types.Uint, types.Double, number:
		s, err := asText(v)
		return append(b, s...), err
	case traits.Lister:
		b = append(b, '[')
		for it, first := v.Iterator(), true; it.HasNext() == types.True; first = false {
			if !first {
				b = append(b, ',')
			}
			var err error
			if b, err = appendJSON(b, it.Next(), depth+1); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case traits.Mapper:
		members := map[string]ref.Val{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			k := it.Next()
			name, ok := k.(types.String)
			if !ok {
				return nil, errors.New("has a map key that is not a string; JSON names are strings")
			}
			members[string(name)] = v.Get(k)
		}
		names := make([]string, 0, len(members))
		for name := range members {
			names = append(names, name)
		}
		slices.Sort(names)
		b = append(b, '{')
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, name), ':')
			var err error
			if b, err = appendJSON(b, members[name], depth+1); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	}
	return nil, errors.New("has no JSON form; convert it to text")
}

// appendString writes a JSON string. HTML characters stay as they are: the hash is over these bytes.
func appendString(b []byte, s string) []byte {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}

func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

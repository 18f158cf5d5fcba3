package policy

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/holdpoint/holdpoint"
)

// number is a JSON number whose lexeme CEL's own types would not give back (10.50, 1e3, 123456789012345678901). It
// travels untouched through field access, lists, maps and conditionals, so that a rendered value keeps the sender's
// digits; wherever a function or operator reads it, it is the plain value (see keepLexemes).
type number struct {
	lexeme string
	plain  ref.Val
}

func (n number) ConvertToNative(t reflect.Type) (any, error) { return n.plain.ConvertToNative(t) }

func (n number) ConvertToType(t ref.Type) ref.Val {
	if t == types.StringType {
		return types.String(n.lexeme)
	}
	return n.plain.ConvertToType(t)
}

func (n number) Equal(other ref.Val) ref.Val { return types.Equal(n.plain, scalar(other)) }
func (n number) Type() ref.Type              { return n.plain.Type() }
func (n number) Value() any                  { return json.Number(n.lexeme) }

// newNumber gives integers that fit 64 bits as int, everything else as double. The result remembers the lexeme when
// the plain value would be written differently.
func newNumber(lexeme string) ref.Val {
	if !strings.ContainsAny(lexeme, ".eE") {
		if i, err := strconv.ParseInt(lexeme, 10, 64); err == nil {
			if strconv.FormatInt(i, 10) == lexeme {
				return types.Int(i)
			}
			return number{lexeme, types.Int(i)}
		}
	}
	f, err := strconv.ParseFloat(lexeme, 64)
	if err != nil { // out of range: exact as text, infinite in comparisons
		return number{lexeme, types.Double(f)}
	}
	if plain, err := json.Marshal(f); err == nil && string(plain) == lexeme {
		return types.Double(f)
	}
	return number{lexeme, types.Double(f)}
}

// adapter turns decoded JSON into CEL values lazily; exact keeps lexemes, otherwise numbers are plain.
type adapter struct{ exact bool }

func (a adapter) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case json.Number:
		n := newNumber(string(v))
		if !a.exact {
			return scalar(n)
		}
		return n
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case []any:
		return types.NewDynamicList(a, v)
	case ref.Val:
		if !a.exact {
			return plain(v)
		}
		return v
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}

// scalar strips the lexeme from a number and leaves everything else alone.
func scalar(v ref.Val) ref.Val {
	if n, ok := v.(number); ok {
		return n.plain
	}
	return v
}

// plain strips lexemes from a value and everything in it; decoded JSON is re-wrapped, not copied.
func plain(v ref.Val) ref.Val {
	switch v := v.(type) {
	case number:
		return v.plain
	case traits.Mapper:
		if m, ok := v.Value().(map[string]any); ok {
			return types.NewStringInterfaceMap(adapter{}, m)
		}
		m := map[ref.Val]ref.Val{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			k := it.Next()
			m[k] = plain(v.Get(k))
		}
		return types.NewRefValMap(adapter{}, m)
	case traits.Lister:
		if l, ok := v.Value().([]any); ok {
			return types.NewDynamicList(adapter{}, l)
		}
		var l []ref.Val
		for it := v.Iterator(); it.HasNext() == types.True; {
			l = append(l, plain(it.Next()))
		}
		return types.NewRefValList(adapter{}, l)
	}
	return v
}

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// decode reads one JSON document with its numbers as lexemes. Empty input is null.
func decode(doc []byte) (any, error) {
	if len(bytes.TrimSpace(doc)) == 0 {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, holdpoint.Errorf(holdpoint.CodeInvalidJSON, "send one well-formed JSON document")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, holdpoint.Errorf(holdpoint.CodeInvalidJSON, "send one JSON document with nothing after it")
	}
	return v, nil
}

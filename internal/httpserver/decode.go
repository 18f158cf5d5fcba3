package httpserver

import (
	"encoding"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"github.com/holdpoint/holdpoint"
)

// Decode reads the request's body, exactly one JSON object, into the struct that v points to. limit bounds its bytes;
// check says whether the document is one that every parser reads in the same way (size, depth, duplicate members,
// encoding), and its error is returned as it is. A member that v does not have, under its exact name, is an error that
// names it, as is a value of the wrong type. Errors are unsupported_media_type, too_large, invalid_request and those of
// check; none shows a value.
func Decode(w http.ResponseWriter, r *http.Request, limit int64, check func([]byte) error, v any) error {
	body, err := Body(w, r, limit)
	if err != nil {
		return err
	}
	if err := check(body); err != nil {
		return err
	}
	return Unmarshal(body, v)
}

// Body reads the request's body if it is declared to be plain JSON. A body that is not there is invalid_json.
func Body(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength == 0 {
		return nil, noBody()
	}
	if !isJSON(r.Header) {
		return nil, holdpoint.Errorf(holdpoint.CodeUnsupportedMedia, "Send the body with Content-Type: application/json, in UTF-8 and without an encoding.")
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge(large.Limit)
	case err != nil:
		return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "The body ended before it was complete; send it again.").Wrap(err)
	case len(body) == 0:
		return nil, noBody()
	}
	return body, nil
}

func noBody() error {
	return holdpoint.Errorf(holdpoint.CodeInvalidJSON, "The request has no body; send one JSON object.")
}

func tooLarge(limit int64) *holdpoint.Error {
	return holdpoint.Errorf(holdpoint.CodeTooLarge, "The body is larger than %d bytes; send less.", limit)
}

func isJSON(h http.Header) bool {
	media, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || media != "application/json" || len(h.Values("Content-Type")) > 1 {
		return false
	}
	charset, given := params["charset"]
	encoding := h.Get("Content-Encoding")
	return (!given || strings.EqualFold(charset, "utf-8")) && (encoding == "" || strings.EqualFold(encoding, "identity"))
}

// Unmarshal reads a document that has passed its check into the struct that v points to, as strictly as Decode.
func Unmarshal(doc []byte, v any) error {
	if err := exactNames(doc, reflect.TypeOf(v).Elem(), ""); err != nil {
		return err
	}
	err := json.Unmarshal(doc, v)
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		field := Shown(withoutEmbedded(wrong.Field, reflect.TypeOf(v).Elem()))
		return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "%s must be %s.", field, kindName(wrong.Type)).With("field", field)
	case errors.As(err, &syntax):
		return holdpoint.Errorf(holdpoint.CodeInvalidJSON, "The JSON is refused at byte %d: it is not well-formed.", syntax.Offset)
	case err != nil:
		return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "A value does not have the form that its field takes; write durations like 90s or 5m and times like 2026-01-02T15:04:05Z.")
	}
	return nil
}

// exactNames walks the structs of t beside the document and refuses what they do not name. encoding/json would take
// `Workflow` for `workflow`, and then two spellings for one field.
func exactNames(doc []byte, t reflect.Type, at string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if readsItself(t) {
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		var members map[string]json.RawMessage
		if json.Unmarshal(doc, &members) != nil || members == nil && at == "" {
			if at == "" {
				return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "Send one JSON object as the body.")
			}
			return nil // json.Unmarshal says what is wrong with it
		}
		fields := jsonFields(t)
		for name, value := range members {
			below, ok := fields[name]
			if !ok {
				return unknownField(at + name)
			}
			if err := exactNames(value, below, at+name+"."); err != nil {
				return err
			}
		}
	case reflect.Slice, reflect.Array:
		var items []json.RawMessage
		if json.Unmarshal(doc, &items) != nil {
			return nil
		}
		for i, item := range items {
			if err := exactNames(item, t.Elem(), at+strconv.Itoa(i)+"."); err != nil {
				return err
			}
		}
	}
	return nil
}

func unknownField(name string) error {
	return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "%s is not a field of this call; leave it out or correct its name.", Shown(name)).With("field", Shown(name))
}

// jsonFields gives the members that a struct reads, those of embedded structs included.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			for below, bt := range jsonFields(f.Type) {
				if _, taken := all[below]; !taken {
					all[below] = bt
				}
			}
		case name == "":
			all[f.Name] = f.Type
		default:
			all[name] = f.Type
		}
	}
	return all
}

// withoutEmbedded takes the names of embedded structs, which no document shows, out of a path that encoding/json tells.
func withoutEmbedded(path string, t reflect.Type) string {
	for t.Kind() == reflect.Struct {
		name, rest, below := strings.Cut(path, ".")
		f, ok := t.FieldByName(name)
		if !below || !ok || !f.Anonymous {
			break
		}
		path, t = rest, f.Type
	}
	return path
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
	marshaler       = reflect.TypeFor[json.Marshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
)

func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(unmarshaler) || p.Implements(textUnmarshaler)
}

func writesItself(t reflect.Type) bool {
	return t.Implements(marshaler) || t.Implements(textMarshaler) || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
}

// kindName says in JSON's words what a Go type takes.
func kindName(t reflect.Type) string {
	if readsItself(t) {
		return "a text"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a text"
}

const maxShown = 64

// Shown makes a caller's field name safe for a message: short, and without characters that could disturb a reader.
func Shown(name string) string {
	name = strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return '?'
	}, name)
	if runes := []rune(name); len(runes) > maxShown {
		return string(runes[:maxShown]) + "…"
	}
	return name
}

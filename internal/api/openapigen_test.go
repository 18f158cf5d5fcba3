package api

import (
	"encoding"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/httpserver"
)

type object = map[string]any

// generator writes the OpenAPI document of the routes, with schemas made from the Go types that are encoded and decoded.
type generator struct {
	enums   map[string][]string // values of the root package's text types, by type name
	schemas object
	types   map[string]reflect.Type
	closed  map[string]bool // schemas of requests, which take no other members
	shared  object          // responses that are problems only, by their codes
}

// generate gives the document, the same bytes for the same routes.
func generate() ([]byte, error) {
	enums, err := textConstants("../..")
	if err != nil {
		return nil, err
	}
	g := &generator{enums: enums, schemas: object{}, types: map[string]reflect.Type{}, closed: map[string]bool{}, shared: object{}}
	paths := object{}
	for _, rt := range routes() {
		method, path, _ := strings.Cut(rt.pattern, " ")
		item, _ := paths[path].(object)
		if item == nil {
			item = object{}
			paths[path] = item
		}
		item[strings.ToLower(method)] = g.operation(rt, path)
	}
	for name := range g.closed {
		g.schemas[name].(object)["additionalProperties"] = false
	}
	g.schemas["Problem"] = object{"type": "object", "required": []string{"type", "title", "status", "code", "detail", "request_id"},
		"description": "RFC 9457. Further members depend on code; docs/errors.md lists them.",
		"properties": object{"type": object{"type": "string"}, "title": object{"type": "string"}, "status": object{"type": "integer"},
			"code": object{"type": "string", "enum": answered()}, "detail": object{"type": "string"}, "request_id": object{"type": "string"}}}
	doc := object{
		"openapi": "3.1.0",
		"info": object{"title": "Holdpoint", "version": "1",
			"description": "Times are RFC 3339 in UTC, durations Go style text, ids UUIDv7. Unknown fields and query parameters are errors."},
		"servers":  []object{{"url": "/"}},
		"security": []object{{"bearer": []string{}}},
		"paths":    paths,
		"components": object{"schemas": g.schemas, "responses": g.shared, "securitySchemes": object{"bearer": object{"type": "http", "scheme": "bearer",
			"description": "A machine key (hp_…) or a person's token (hpu_…). Cookies do not count."}}},
	}
	out, err := json.MarshalIndent(doc, "", "  ")
	return append(out, '\n'), err
}

func (g *generator) operation(rt route, path string) object {
	op := object{"operationId": rt.id, "summary": rt.summary, "tags": []string{tag(path)}, "responses": g.responses(rt)}
	if rt.open {
		op["security"] = []object{}
	}
	var params []object
	for _, name := range rt.wildcards() {
		params = append(params, object{"name": name, "in": "path", "required": true, "schema": object{"type": "string", "maxLength": maxPathValue}})
	}
	for in, list := range map[string][]param{"query": rt.query, "header": rt.headers} {
		for _, p := range list {
			schema := object{"type": "string"}
			if p.integer {
				schema = object{"type": "integer", "minimum": 1, "maximum": 500}
			}
			if p.id {
				schema["format"] = "uuid"
			}
			if p.allowed != nil {
				schema["enum"] = p.allowed
			}
			q := object{"name": p.name, "in": in, "schema": schema}
			if p.about != "" {
				q["description"] = p.about
			}
			params = append(params, q)
		}
	}
	if params != nil {
		slices.SortStableFunc(params, func(a, b object) int { return strings.Compare(a["in"].(string), b["in"].(string)) })
		op["parameters"] = params
	}
	if rt.request != nil {
		op["requestBody"] = object{"required": !rt.optional, "content": object{"application/json": object{"schema": g.request(rt.request)}}}
	}
	return op
}

// answered lists every error code that some route may answer, sorted.
func answered() (codes []string) {
	all := map[string]bool{}
	for _, rt := range routes() {
		for _, c := range rt.allCodes() {
			all[string(c)] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// tag groups operations by the first word of their path.
func tag(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/v1"), "/")
	if !strings.HasPrefix(path, "/v1/") {
		return "system"
	}
	return parts[1]
}

func (g *generator) responses(rt route) object {
	out := object{}
	for status, body := range rt.answers {
		r := object{"description": http.StatusText(status)}
		if body != nil {
			r["content"] = object{"application/json": object{"schema": g.schema(reflect.TypeOf(body))}}
		}
		addHeaders(r, status)
		out[strconv.Itoa(status)] = r
	}
	byStatus := map[int][]string{}
	for _, c := range rt.allCodes() {
		byStatus[httpserver.Status(c)] = append(byStatus[httpserver.Status(c)], string(c))
	}
	for status, codes := range byStatus {
		if r, mixed := out[strconv.Itoa(status)].(object); mixed {
			g.problem(r, status, codes)
			continue
		}
		name := strings.Join(codes, ".")
		if g.shared[name] == nil {
			r := object{"description": http.StatusText(status), "content": object{}}
			g.problem(r, status, codes)
			g.shared[name] = r
		}
		out[strconv.Itoa(status)] = object{"$ref": "#/components/responses/" + name}
	}
	return out
}

// problem adds the problem documents with these codes to a response.
func (g *generator) problem(r object, status int, codes []string) {
	r["content"].(object)["application/problem+json"] = object{"schema": object{"allOf": []object{{"$ref": "#/components/schemas/Problem"},
		{"properties": object{"code": object{"enum": codes}}}}}}
	addHeaders(r, status)
}

// addHeaders describes what a caller must heed beside the body.
func addHeaders(r object, status int) {
	switch status {
	case http.StatusConflict, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		r["headers"] = object{"Retry-After": object{"description": "whole seconds to wait, where waiting helps", "schema": object{"type": "integer", "minimum": 1}}}
	case http.StatusUnauthorized:
		r["headers"] = object{"WWW-Authenticate": object{"description": "the scheme that is asked for", "schema": object{"type": "string"}}}
	}
}

// request makes the schema of a request and closes it and all that it contains.
func (g *generator) request(t reflect.Type) object {
	g.close(t)
	return g.schema(t)
}

func (g *generator) close(t reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		g.close(t.Elem())
	case reflect.Struct:
		if opaque(t) || g.closed[schemaName(t)] {
			return
		}
		g.closed[schemaName(t)] = true
		for _, f := range members(t) {
			g.close(f.Type)
		}
	}
}

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

func opaque(t reflect.Type) bool { return t.Implements(marshaler) || t.Implements(textMarshaler) }

// schema gives the schema of a type; structs are referred to by name.
func (g *generator) schema(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[holdpoint.Duration]():
		return object{"type": "string", "examples": []string{"90s", "24h0m0s"}}
	case t == reflect.TypeFor[json.RawMessage]():
		return object{}
	case t == reflect.TypeFor[httpserver.Problem]():
		return object{"$ref": "#/components/schemas/Problem"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer"}
	case reflect.String:
		s := object{"type": "string"}
		if values := g.enums[t.Name()]; t.PkgPath() == reflect.TypeFor[holdpoint.Run]().PkgPath() && values != nil {
			s["enum"] = values
		}
		return s
	case reflect.Pointer:
		return g.schema(t.Elem())
	case reflect.Slice:
		return object{"type": "array", "items": g.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.schema(t.Elem())}
	case reflect.Interface:
		return object{}
	case reflect.Struct:
		return g.structure(t)
	}
	panic(fmt.Sprintf("no schema for %s", t))
}

func (g *generator) structure(t reflect.Type) object {
	name := schemaName(t)
	ref := object{"$ref": "#/components/schemas/" + name}
	if known, ok := g.types[name]; ok {
		if known != t {
			panic(fmt.Sprintf("two types are called %s: %s and %s", name, known, t))
		}
		return ref
	}
	g.types[name] = t
	s := object{"type": "object"}
	g.schemas[name] = s
	properties, required := object{}, []string{}
	for _, f := range members(t) {
		properties[f.Name] = g.schema(f.Type)
		if !f.optional {
			if f.Type.Kind() == reflect.Pointer {
				properties[f.Name] = object{"anyOf": []object{g.schema(f.Type), {"type": "null"}}}
			}
			required = append(required, f.Name)
		}
	}
	if t == reflect.TypeFor[engine.EffectView]() { // a planned effect has no row in the outbox and so no state
		properties["state"] = object{"type": "string", "enum": append([]string{""}, g.enums["EffectState"]...)}
	}
	s["properties"] = properties
	if len(required) > 0 {
		s["required"] = required
	}
	return ref
}

// schemaName makes an exported name of a type's.
func schemaName(t reflect.Type) string { return strings.ToUpper(t.Name()[:1]) + t.Name()[1:] }

type jsonMember struct {
	Name     string
	Type     reflect.Type
	optional bool
}

// members lists what encoding/json writes: an outer member hides an embedded one of the same name.
func members(t reflect.Type) []jsonMember {
	var out, embedded []jsonMember
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && name == "":
			embedded = append(embedded, members(f.Type)...)
		default:
			out = append(out, jsonMember{name, f.Type, strings.Contains(options, "omit")})
		}
	}
	for _, e := range embedded {
		if !slices.ContainsFunc(out, func(m jsonMember) bool { return m.Name == e.Name }) {
			out = append(out, e)
		}
	}
	return out
}

// textConstants reads the constants of each named text type of a package's source, in order.
func textConstants(dir string) (map[string][]string, error) {
	found := map[string][]string{}
	names, err := fs.Glob(os.DirFS(dir), "*.go")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if typ, ok := spec.Type.(*ast.Ident); ok && len(spec.Values) == 1 {
				if lit, ok := spec.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					value, err := strconv.Unquote(lit.Value)
					if err == nil {
						found[typ.Name] = append(found[typ.Name], value)
					}
				}
			}
			return true
		})
	}
	return found, nil
}

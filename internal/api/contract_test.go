package api

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/httpserver"
)

// seen collects what the tests have met: each answer by pattern and status, each problem also by its code.
var seen sync.Map

// unmet gives the reason for each documented answer that no test meets: "operation status" or "operation code".
var unmet = map[string]string{
	"getHealth 500":  "only a panic would give it, and it calls nothing",
	"getOpenAPI 500": "only a panic would give it, and it calls nothing",

	"submitDraft not_allowed_now": "two drafts under one lease at the same moment; the model of package storetest meets it",
	"completeRun not_allowed_now": "no run under a lease has open effects in this version; the store refuses it all the same",
}

// TestMain holds, when all tests run, that each documented answer of each call was met and so held to the document: each
// status, and each error code that the call lists beside those of every call. What is met needs no excuse.
func TestMain(m *testing.M) {
	code := m.Run()
	if flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.fuzz").Value.String() == "" && code == 0 {
		for _, what := range neverMet() {
			fmt.Println(what)
			code = 1
		}
	}
	os.Exit(code)
}

func neverMet() (complaints []string) {
	for _, rt := range routes() {
		var due []string
		for status := range rt.answers {
			due = append(due, strconv.Itoa(status))
		}
		for _, c := range rt.allCodes() {
			due = append(due, strconv.Itoa(httpserver.Status(c)))
		}
		for _, c := range rt.codes {
			due = append(due, string(c))
		}
		slices.Sort(due)
		for _, what := range slices.Compact(due) {
			_, met := seen.Load(rt.pattern + " " + what)
			switch excuse := unmet[rt.id+" "+what]; {
			case !met && excuse == "":
				complaints = append(complaints, fmt.Sprintf("no test meets %s of %s (%s)", what, rt.id, rt.pattern))
			case met && excuse != "":
				complaints = append(complaints, fmt.Sprintf("a test meets %s of %s; take it off the list of what is not met", what, rt.id))
			}
		}
	}
	return complaints
}

// contract validates requests and answers against the document. Objects take no members that the document lacks, so
// that the document cannot fall behind the code; published schemas stay open for later additions.
type contract struct {
	compiler *jsonschema.Compiler
	doc      map[string]any
	schemas  map[string]*jsonschema.Schema
}

func newContract(t testing.TB) *contract {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	require.NoError(t, err)
	c := &contract{compiler: jsonschema.NewCompiler(), doc: doc.(map[string]any), schemas: map[string]*jsonschema.Schema{}}
	c.compiler.AssertFormat()
	for name, s := range c.doc["components"].(map[string]any)["schemas"].(map[string]any) {
		if schema := s.(map[string]any); name != "Problem" && schema["additionalProperties"] == nil {
			schema["additionalProperties"] = false
		}
	}
	require.NoError(t, c.compiler.AddResource("openapi.json", doc))
	return c
}

// node gives what stands at a path of the document, nil if there is nothing.
func (c *contract) node(path ...string) any {
	var here any = c.doc
	for _, p := range path {
		switch node := here.(type) {
		case map[string]any:
			here = node[p]
		case []any:
			i, err := strconv.Atoi(p)
			if err != nil || i < 0 || i >= len(node) {
				return nil
			}
			here = node[i]
		default:
			return nil
		}
	}
	return here
}

// at compiles the schema at a path of the document; nil if there is none.
func (c *contract) at(t testing.TB, path ...string) *jsonschema.Schema {
	t.Helper()
	if c.node(path...) == nil {
		return nil
	}
	pointer := "openapi.json#"
	for _, p := range path {
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(p)
	}
	if c.schemas[pointer] == nil {
		s, err := c.compiler.Compile(pointer)
		require.NoError(t, err)
		c.schemas[pointer] = s
	}
	return c.schemas[pointer]
}

// operation gives the path of an operation in the document.
func operation(pattern string, below ...string) []string {
	method, path, _ := strings.Cut(pattern, " ")
	return append([]string{"paths", path, strings.ToLower(method)}, below...)
}

// response gives the path of a response, which may be shared.
func (c *contract) response(path ...string) []string {
	if m, _ := c.node(path...).(map[string]any); m["$ref"] != nil {
		return strings.Split(strings.TrimPrefix(m["$ref"].(string), "#/"), "/")
	}
	return path
}

// answer holds one answer to what the document says about its call: status, headers, media type and body.
func (c *contract) answer(t testing.TB, pattern string, status int, header http.Header, body []byte) error {
	t.Helper()
	seen.Store(fmt.Sprintf("%s %d", pattern, status), true)
	response := c.response(operation(pattern, "responses", strconv.Itoa(status))...)
	if c.node(response...) == nil {
		return errors.New("the document lacks this status")
	}
	if err := c.headers(status, header, response); err != nil {
		return err
	}
	if status == http.StatusNoContent {
		if len(body) > 0 {
			return errors.New("there is a body")
		}
		return nil
	}
	media, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	s := c.at(t, append(response, "content", media, "schema")...)
	if s == nil {
		return fmt.Errorf("the document lacks the media type %q", media)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	if m, _ := v.(map[string]any); media == "application/problem+json" {
		seen.Store(fmt.Sprintf("%s %s", pattern, m["code"]), true)
	}
	return s.Validate(v)
}

// headers holds that what a caller must heed is there, and described.
func (c *contract) headers(status int, header http.Header, response []string) error {
	described, _ := c.node(append(response, "headers")...).(map[string]any)
	for _, name := range []string{"Retry-After", "WWW-Authenticate", "Allow", "Location", "Set-Cookie"} {
		if header.Get(name) != "" && described[name] == nil {
			return fmt.Errorf("the document lacks the header %s", name)
		}
	}
	wait := header.Get("Retry-After")
	if n, err := strconv.Atoi(wait); wait != "" && (err != nil || n < 1) {
		return fmt.Errorf("Retry-After is %q", wait)
	}
	switch {
	case wait == "" && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable):
		return errors.New("there is no Retry-After")
	case status == http.StatusUnauthorized && header.Get("WWW-Authenticate") == "":
		return errors.New("there is no WWW-Authenticate")
	case header.Get("X-Request-Id") == "" || header.Get("Cache-Control") != "no-store":
		return errors.New("there is no X-Request-Id, or caches may keep the answer")
	}
	return nil
}

// request holds what was accepted, query and body, to the document.
func (c *contract) request(t testing.TB, pattern string, r *http.Request, body []byte) error {
	t.Helper()
	params, _ := c.node(operation(pattern, "parameters")...).([]any)
	for name, values := range r.URL.Query() {
		i := slices.IndexFunc(params, func(p any) bool { m := p.(map[string]any); return m["in"] == "query" && m["name"] == name })
		if i < 0 {
			return fmt.Errorf("the document lacks the query parameter %s", name)
		}
		if values[0] == "" {
			continue // counts as not given
		}
		at := operation(pattern, "parameters", strconv.Itoa(i), "schema")
		var v any = values[0]
		if c.node(append(at, "type")...) == "integer" {
			n, err := strconv.Atoi(values[0])
			if err != nil {
				return err
			}
			v = n
		}
		if err := c.at(t, at...).Validate(v); err != nil {
			return err
		}
	}
	s := c.at(t, operation(pattern, "requestBody", "content", "application/json", "schema")...)
	if s == nil || len(body) == 0 {
		return nil
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

func TestEverySchemaCompiles(t *testing.T) {
	c := newContract(t)
	for path, item := range c.doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			for status := range op.(map[string]any)["responses"].(map[string]any) {
				at := c.response("paths", path, method, "responses", status)
				found := 0
				for _, media := range []string{"application/json", "application/problem+json"} {
					if c.at(t, append(at, "content", media, "schema")...) != nil {
						found++
					}
				}
				require.Equal(t, status != "204", found > 0, "%s %s %s", method, path, status)
			}
		}
	}
}

// TestEveryCodeIsSomewhere holds the page of errors to the calls: its first table lists what calls answer, the others
// what results, pages and the server's inside name.
func TestEveryCodeIsSomewhere(t *testing.T) {
	page, err := os.ReadFile("../../docs/errors.md")
	require.NoError(t, err)
	tables := map[string][]string{}
	heading := ""
	for line := range strings.Lines(string(page)) {
		if h, ok := strings.CutPrefix(line, "## "); ok {
			heading = strings.TrimSpace(h)
		}
		if code, ok := strings.CutPrefix(line, "| `"); ok && heading != repeatHeading {
			code, _, _ = strings.Cut(code, "`")
			tables[heading] = append(tables[heading], code)
		}
	}
	slices.Sort(tables["What calls answer"])
	require.Equal(t, answered(), tables["What calls answer"])
	require.ElementsMatch(t, []string{string(holdpoint.CodeBusy), string(holdpoint.CodeInProgress), string(holdpoint.CodeUncertain)}, tables["What results name"])
	require.ElementsMatch(t, []string{string(holdpoint.CodeCrossOrigin), string(holdpoint.CodeBadNonce), string(holdpoint.CodePasswordChange)}, tables["What pages answer"])
	require.ElementsMatch(t, []string{string(holdpoint.CodeRender)}, tables["What never leaves the server"])
	require.Len(t, tables, 4)
}

// required lists the members that the document requires of a call's body.
func (c *contract) required(rt route) (names []string) {
	at := c.response(operation(rt.pattern, "requestBody", "content", "application/json", "schema")...)
	list, _ := c.node(append(at, "required")...).([]any)
	for _, name := range list {
		names = append(names, name.(string))
	}
	return names
}

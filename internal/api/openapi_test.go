package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/httpserver"
)

var update = flag.Bool("update", false, "write the generated document")

// TestDocument holds openapi.json to the routes and types of the code.
func TestDocument(t *testing.T) {
	want, err := generate()
	require.NoError(t, err)
	again, err := generate()
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, again), "the generator is deterministic")
	if *update {
		require.NoError(t, os.WriteFile("openapi.json", want, 0o644))
		return
	}
	require.Equal(t, string(want), string(document), "openapi.json is not as generated; run go generate ./internal/api")
}

// TestDocumentAndRoutesAgree holds the embedded document to the mux in both directions, without the generator's help.
func TestDocumentAndRoutesAgree(t *testing.T) {
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Summary     string
			Parameters  []struct{ Name, In string }
			RequestBody *struct{ Content map[string]any }
			Responses   map[string]struct {
				Ref     string `json:"$ref"`
				Content map[string]any
			}
			Security *[]any
		}
	}
	require.NoError(t, json.Unmarshal(document, &doc))
	require.Equal(t, "3.1.0", doc.OpenAPI)
	mux := http.NewServeMux()
	inCode, ids := map[string]bool{}, map[string]bool{}
	for _, rt := range routes() {
		require.NotPanics(t, func() { mux.Handle(rt.pattern, http.NotFoundHandler()) })
		inCode[rt.pattern] = true
	}
	for path, item := range doc.Paths {
		for method, op := range item {
			pattern := strings.ToUpper(method) + " " + path
			require.True(t, inCode[pattern], "%s is described but not served", pattern)
			delete(inCode, pattern)
			require.False(t, ids[op.OperationID], "operationId %s is used twice", op.OperationID)
			ids[op.OperationID] = true
			require.NotEmpty(t, op.Summary, pattern)
			require.Equal(t, method == "post" || method == "put", op.RequestBody != nil, pattern)
			inPath := 0
			for _, p := range op.Parameters {
				if p.In == "path" {
					inPath++
					require.Contains(t, path, "{"+p.Name+"}")
				}
			}
			require.Equal(t, strings.Count(path, "{"), inPath, pattern)
			success := 0
			for status, r := range op.Responses {
				n, err := strconv.Atoi(status)
				require.NoError(t, err)
				if n < 300 {
					success++
				}
				if n >= 400 && r.Content["application/json"] == nil && r.Ref == "" {
					require.NotNil(t, r.Content["application/problem+json"], "%s %s", pattern, status)
				}
			}
			require.NotZero(t, success, pattern)
			for _, status := range []string{"429", "500"} {
				require.Contains(t, op.Responses, status, pattern)
			}
			if op.Security == nil {
				require.Contains(t, op.Responses, "401", pattern)
				require.Contains(t, op.Responses, "403", pattern)
			}
		}
	}
	require.Empty(t, inCode, "served but not described")
}

// seen collects the answers that the tests have met, by pattern and status.
var seen sync.Map

// TestMain holds, when all tests run, that each answer of each call was met and so held to the document.
func TestMain(m *testing.M) {
	code := m.Run()
	if flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.fuzz").Value.String() == "" && code == 0 {
		for _, rt := range routes() {
			for status := range rt.answers {
				if answer := fmt.Sprintf("%s %d", rt.pattern, status); !met(answer) {
					fmt.Println("no test meets", answer)
					code = 1
				}
			}
		}
	}
	os.Exit(code)
}

func met(answer string) bool {
	_, ok := seen.Load(answer)
	return ok
}

// contract validates requests and answers against the document. Objects take no members that the document lacks, so
// that the document cannot fall behind the code; published schemas stay open for later additions.
type contract struct {
	compiler *jsonschema.Compiler
	doc      map[string]any
	schemas  map[string]*jsonschema.Schema
}

func newContract(t *testing.T) *contract {
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

// at compiles the schema at a path of the document; nil if there is none.
func (c *contract) at(t *testing.T, path ...string) *jsonschema.Schema {
	t.Helper()
	var here any = c.doc
	pointer := "openapi.json#"
	for _, p := range path {
		m, _ := here.(map[string]any)
		if here = m[p]; here == nil {
			return nil
		}
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(p)
	}
	if c.schemas[pointer] == nil {
		s, err := c.compiler.Compile(pointer)
		require.NoError(t, err)
		c.schemas[pointer] = s
	}
	return c.schemas[pointer]
}

// response gives the path of a response, which may be shared.
func (c *contract) response(path ...string) []string {
	var here any = c.doc
	for _, p := range path {
		m, _ := here.(map[string]any)
		here = m[p]
	}
	if m, _ := here.(map[string]any); m["$ref"] != nil {
		return strings.Split(strings.TrimPrefix(m["$ref"].(string), "#/"), "/")
	}
	return path
}

// answer holds one answer to what the document says about its call, status and media type.
func (c *contract) answer(t *testing.T, pattern string, status int, media string, body []byte) {
	t.Helper()
	method, path, _ := strings.Cut(pattern, " ")
	if status == http.StatusNoContent || media == "application/json" {
		seen.Store(fmt.Sprintf("%s %d", pattern, status), true)
	}
	responses := c.response("paths", path, strings.ToLower(method), "responses", strconv.Itoa(status))
	if status == http.StatusNoContent {
		require.Empty(t, body)
		return
	}
	s := c.at(t, append(responses, "content", media, "schema")...)
	shown := body[:min(len(body), 300)]
	require.NotNil(t, s, "%s answers %d as %q, which the document lacks: %s", pattern, status, media, shown)
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	require.NoError(t, err, "%s %d: %s", pattern, status, shown)
	require.NoError(t, s.Validate(v), "%s %d: %s", pattern, status, shown)
}

// request holds a body that was accepted to the document.
func (c *contract) request(t *testing.T, pattern string, body []byte) {
	t.Helper()
	method, path, _ := strings.Cut(pattern, " ")
	s := c.at(t, "paths", path, strings.ToLower(method), "requestBody", "content", "application/json", "schema")
	if s == nil || len(body) == 0 {
		return
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	require.NoError(t, err)
	require.NoError(t, s.Validate(v), "%s accepts a body that the document refuses: %s", pattern, body)
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
	require.Equal(t, len(httpserver.Statuses), len(c.doc["components"].(map[string]any)["schemas"].(map[string]any)["Problem"].(map[string]any)["properties"].(map[string]any)["code"].(map[string]any)["enum"].([]any)))
}

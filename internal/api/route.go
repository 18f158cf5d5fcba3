package api

import (
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/httpserver"
	"github.com/holdpoint/holdpoint/internal/payload"
)

// route is one call of the API, with all that its description in the OpenAPI document says.
type route struct {
	pattern  string // method and path, as http.ServeMux reads it
	id       string // operationId
	summary  string
	open     bool // answers without a token
	anyone   bool // any live token will do
	query    []param
	headers  []param
	request  reflect.Type     // nil: the call takes no body
	optional bool             // the body may be left out
	answers  map[int]any      // a zero value of what each status answers; nil for no body
	codes    []holdpoint.Code // errors beside those of every such call
	serve    func(c *call) (answer, error)
}

// param is a query parameter or header. Allowed lists its values, nil for any.
type param struct {
	name, about string
	allowed     []string
	integer     bool
	id          bool // a UUID
}

// answer is a status with its body. A positive retryAfter becomes the header.
type answer struct {
	status     int
	body       any
	retryAfter time.Duration
}

func ok(body any) answer      { return answer{status: http.StatusOK, body: body} }
func created(body any) answer { return answer{status: http.StatusCreated, body: body} }

// gone answers a deletion.
var gone = answer{status: http.StatusNoContent}

// with makes a route that reads a body of type R strictly.
func with[R any](rt route, serve func(c *call, r R) (answer, error)) route {
	rt.request = reflect.TypeFor[R]()
	rt.serve = func(c *call) (answer, error) {
		var r R
		if rt.optional && c.r.ContentLength == 0 {
			return serve(c, r)
		}
		if err := c.decode(&r); err != nil {
			return answer{}, err
		}
		return serve(c, r)
	}
	return rt
}

func (c *call) decode(v any) error {
	l := c.server.limits
	return httpserver.Decode(c.w, c.r, int64(l.MaxBytes), func(b []byte) error { return payload.Check(b, l) }, v)
}

// everyCode lists what each call with a token may answer.
var everyCode = []holdpoint.Code{holdpoint.CodeUnauthenticated, holdpoint.CodeRateLimited, holdpoint.CodeInternal, holdpoint.CodeUnavailable}

// rightCodes lists what each call that asks for a right may answer.
var rightCodes = []holdpoint.Code{holdpoint.CodeForbidden, holdpoint.CodeInsufficientScope}

// openCodes lists what each call without a token may answer.
var openCodes = []holdpoint.Code{holdpoint.CodeRateLimited, holdpoint.CodeInternal, holdpoint.CodeInvalidRequest}

// bodyCodes lists what each call with a body may answer about it.
var bodyCodes = []holdpoint.Code{holdpoint.CodeInvalidRequest, holdpoint.CodeInvalidJSON, holdpoint.CodeTooDeep,
	holdpoint.CodeTooLarge, holdpoint.CodeUnsupportedMedia}

// Codes of groups of calls.
var (
	workCodes   = []holdpoint.Code{holdpoint.CodeNotFound, holdpoint.CodeLeaseLost, holdpoint.CodeLeaseOtherExecution}
	activeCodes = []holdpoint.Code{holdpoint.CodeNoPolicy, holdpoint.CodeInvalidPolicy} // of the active policy
	moveCodes   = []holdpoint.Code{holdpoint.CodeNotFound, holdpoint.CodeNotAllowedNow, holdpoint.CodeReasonRequired}
)

// allCodes lists every error code that the route may answer.
func (rt route) allCodes() []holdpoint.Code {
	codes := slices.Clone(rt.codes)
	if rt.open {
		codes = append(codes, openCodes...)
	} else {
		codes = append(codes, everyCode...)
		if !rt.anyone {
			codes = append(codes, rightCodes...)
		}
		codes = append(codes, holdpoint.CodeInvalidRequest) // an unknown query parameter
	}
	if rt.request != nil {
		codes = append(codes, bodyCodes...)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}

// wildcards lists the names of the path's parameters.
func (rt route) wildcards() []string {
	var names []string
	for part := range strings.SplitSeq(rt.pattern, "/") {
		if name, found := strings.CutPrefix(part, "{"); found {
			names = append(names, strings.TrimSuffix(name, "}"))
		}
	}
	return names
}

// maxPathValue bounds a path parameter; the longest is an e-mail address.
const maxPathValue = 254

// checkPath refuses path parameters that can name nothing.
func checkPath(r *http.Request, names []string) error {
	for _, name := range names {
		if v := r.PathValue(name); len(v) > maxPathValue || !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl) {
			return holdpoint.Errorf(holdpoint.CodeNotFound, "Nothing can have such a name; correct the path.")
		}
	}
	return nil
}

// paging are the parameters of a list.
var paging = []param{
	{name: "cursor", about: "next_cursor of the page before", id: true},
	{name: "limit", about: "entries of a page, 1 to 500; 50 if not given", integer: true},
}

// readQuery takes the parameters that the call knows, each at most once; an empty one counts as not given.
func readQuery(r *http.Request, known []param) (map[string]string, error) {
	out := map[string]string{}
	if r.URL.RawQuery == "" {
		return out, nil
	}
	values, err := parseQuery(r)
	if err != nil {
		return nil, err
	}
	for name, all := range values {
		i := slices.IndexFunc(known, func(p param) bool { return p.name == name })
		if i < 0 {
			return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "%s is not a query parameter of this call; leave it out or correct its name.", httpserver.Shown(name))
		}
		p := known[i]
		switch {
		case len(all) > 1:
			return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "Give the query parameter %s once.", name)
		case all[0] == "":
			continue
		case p.allowed != nil && !slices.Contains(p.allowed, all[0]):
			return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "The query parameter %s takes one of: %s.", name, words(p.allowed))
		case p.id && !isID(all[0]):
			return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "The query parameter %s takes %s, unchanged; leave it out to begin at the first page.", name, p.about)
		case p.integer:
			if n, err := strconv.Atoi(all[0]); err != nil || n < 1 || n > 500 {
				return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "The query parameter %s takes a whole number from 1 to 500.", name)
			}
		}
		out[name] = all[0]
	}
	return out, nil
}

// isID says whether text is a UUID as Holdpoint writes it: ids are compared as text.
func isID(text string) bool {
	id, err := uuid.Parse(text)
	return err == nil && id.String() == text
}

// number gives an integer parameter, 0 if it is not given; readQuery has checked it.
func (c *call) number(name string) int {
	n, _ := strconv.Atoi(c.query[name])
	return n
}

func parseQuery(r *http.Request) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "The query is not well-formed; percent-encode its values.")
	}
	for _, all := range values {
		for _, v := range all {
			if !utf8.ValidString(v) || strings.ContainsRune(v, 0) || len(v) > maxQueryValue {
				return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "A query value is longer than %d bytes or is not text.", maxQueryValue)
			}
		}
	}
	return values, nil
}

// maxQueryValue bounds a value that is searched for; the longest is a record of an operation.
const maxQueryValue = 2048

func words(all []string) string { return strings.Join(all, ", ") }

func retryAfter(d time.Duration) string { return strconv.Itoa(httpserver.RetrySeconds(d)) }

package httpcall

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/holdpoint/holdpoint"
)

// verdict is what an answer means for the write: the row of the failure matrix and the three-valued result.
type verdict struct {
	class  holdpoint.FailureClass
	result holdpoint.Result
}

// byStatus says what a status alone means. The first row that contains the status counts; what is in no row is unclear.
// Rejected stands only where the status itself says that the request was not carried out (RFC 9110, 6585, 8470).
var byStatus = []struct {
	from, to int
	verdict
}{
	{207, 207, verdict{holdpoint.ClassPartial, holdpoint.Unclear}},  // some items may be done
	{302, 303, verdict{holdpoint.ClassRedirect, holdpoint.Unclear}}, // RFC 9110 15.4.4: answers a request that was handled; 302 in practice too
	{300, 399, verdict{holdpoint.ClassRedirect, holdpoint.Rejected}},
	{401, 401, verdict{holdpoint.ClassCredentials, holdpoint.Rejected}},
	{402, 402, verdict{holdpoint.ClassDeclined, holdpoint.Rejected}},
	{403, 403, verdict{holdpoint.ClassPermission, holdpoint.Rejected}},
	{407, 407, verdict{holdpoint.ClassCredentials, holdpoint.Rejected}},
	{408, 408, verdict{holdpoint.ClassAmbiguous, holdpoint.Unclear}}, // sent by gateways that gave up on their backend too
	{409, 409, verdict{holdpoint.ClassAlreadyExists, holdpoint.Unclear}},
	{410, 410, verdict{holdpoint.ClassGone, holdpoint.Rejected}},
	{421, 421, verdict{holdpoint.ClassConnect, holdpoint.Rejected}},   // wrong connection for this host
	{425, 425, verdict{holdpoint.ClassThrottled, holdpoint.Rejected}}, // RFC 8470: not processed, send later
	{429, 429, verdict{holdpoint.ClassThrottled, holdpoint.Rejected}},
	{499, 499, verdict{holdpoint.ClassAmbiguous, holdpoint.Unclear}}, // a proxy that thinks we have gone
	{400, 499, verdict{holdpoint.ClassInvalidData, holdpoint.Rejected}},
	{502, 504, verdict{holdpoint.ClassOverloaded, holdpoint.Unclear}}, // a gateway can hide a commit
	{520, 524, verdict{holdpoint.ClassOverloaded, holdpoint.Unclear}}, // Cloudflare's gateway errors
	{529, 529, verdict{holdpoint.ClassOverloaded, holdpoint.Unclear}},
	{500, 599, verdict{holdpoint.ClassProviderError, holdpoint.Unclear}},
}

// codeAt are the places where providers put a machine-readable error code.
var codeAt = []string{
	"/error/type", "/error/code", "/error/status", "/error", "/code", "/type", "/name", "/errorCode", "/errors/0/code",
	"/errors/0/extensions/code", "/error/errors/0/reason", "/details/0/issue", "/0/errorCode",
}

// signals are well-known codes that say more than the status. They are matched exactly and only below status 500: a
// server that failed is not believed when it says that it did nothing.
var signals = map[string]verdict{
	// The key was used before with another request; what became of that one is not known here.
	"idempotency_error":          {holdpoint.ClassKeyConflict, holdpoint.Unclear}, // Stripe, error.type
	"IDEMPOTENCY_KEY_REUSED":     {holdpoint.ClassKeyConflict, holdpoint.Unclear}, // Square
	"IdempotentRequestError":     {holdpoint.ClassKeyConflict, holdpoint.Unclear}, // Zendesk
	"invalid_idempotent_request": {holdpoint.ClassKeyConflict, holdpoint.Unclear}, // Resend

	// A request with this key is running now: our twin, or an attempt whose answer we lost.
	"idempotency_key_in_use":         {holdpoint.ClassInProgress, holdpoint.Unclear}, // Stripe, error.code
	"concurrent_idempotent_requests": {holdpoint.ClassInProgress, holdpoint.Unclear}, // Resend
	"IDEMPOTENCY_CONCURRENT_REQUEST": {holdpoint.ClassInProgress, holdpoint.Unclear}, // Shopify

	// The object is there already, perhaps by an earlier attempt of ours.
	"DUPLICATE_INVOICE_ID": {holdpoint.ClassAlreadyExists, holdpoint.Unclear}, // PayPal
	"DUPLICATE_VALUE":      {holdpoint.ClassAlreadyExists, holdpoint.Unclear}, // Salesforce
	"already_exists":       {holdpoint.ClassAlreadyExists, holdpoint.Unclear},
	"ALREADY_EXISTS":       {holdpoint.ClassAlreadyExists, holdpoint.Unclear}, // Google

	"insufficient_quota":     {holdpoint.ClassQuota, holdpoint.Rejected}, // OpenAI
	"dailyLimitExceeded":     {holdpoint.ClassQuota, holdpoint.Rejected}, // Google
	"REQUEST_LIMIT_EXCEEDED": {holdpoint.ClassQuota, holdpoint.Rejected}, // Salesforce, per day

	"rateLimitExceeded":     {holdpoint.ClassThrottled, holdpoint.Rejected}, // Gmail
	"userRateLimitExceeded": {holdpoint.ClassThrottled, holdpoint.Rejected}, // Gmail
	"ratelimited":           {holdpoint.ClassThrottled, holdpoint.Rejected}, // Slack
	"rate_limited":          {holdpoint.ClassThrottled, holdpoint.Rejected}, // Notion
	"RATE_LIMITED":          {holdpoint.ClassThrottled, holdpoint.Rejected}, // Square
	"THROTTLED":             {holdpoint.ClassThrottled, holdpoint.Rejected}, // Shopify GraphQL

	"invalid_auth":       {holdpoint.ClassCredentials, holdpoint.Rejected}, // Slack
	"token_revoked":      {holdpoint.ClassCredentials, holdpoint.Rejected}, // Slack
	"token_expired":      {holdpoint.ClassCredentials, holdpoint.Rejected}, // Slack
	"not_authed":         {holdpoint.ClassCredentials, holdpoint.Rejected}, // Slack
	"INVALID_SESSION_ID": {holdpoint.ClassCredentials, holdpoint.Rejected}, // Salesforce

	"missing_scope":       {holdpoint.ClassPermission, holdpoint.Rejected}, // Slack
	"not_in_channel":      {holdpoint.ClassPermission, holdpoint.Rejected}, // Slack
	"restricted_resource": {holdpoint.ClassPermission, holdpoint.Rejected}, // Notion

	"fatal_error":    {holdpoint.ClassProviderError, holdpoint.Unclear}, // Slack: perhaps done
	"internal_error": {holdpoint.ClassProviderError, holdpoint.Unclear}, // Slack: perhaps done
}

// answer is what came back. cut says that the body did not arrive completely or was longer than the limit; body is then
// empty.
type answer struct {
	status int
	header http.Header
	body   []byte
	cut    bool
}

// classify says what an answer with a status means.
func (c *Connector) classify(a answer) holdpoint.Outcome {
	o := holdpoint.Outcome{Phase: holdpoint.PhaseComplete, Status: a.status, Detail: "status " + strconv.Itoa(a.status)}
	if a.cut {
		o.Phase = holdpoint.PhaseStatus
		o.Detail += ", body lost"
	}
	asked := retryAfter(a.header, c.now())
	o.RetryAfter = asked.after
	doc := decode(a.body)

	if a.status >= 200 && a.status <= 299 && a.status != http.StatusMultiStatus {
		return c.classifySuccess(o, a, doc)
	}
	v := statusVerdict(a.status)
	switch {
	case (a.status == http.StatusServiceUnavailable || a.status == 529) && asked.named:
		v = verdict{holdpoint.ClassThrottled, holdpoint.Rejected}
	case a.status == http.StatusForbidden && (asked.named || asked.exhausted):
		v = verdict{holdpoint.ClassThrottled, holdpoint.Rejected}
	case a.status == http.StatusConflict && asked.named:
		v.class = holdpoint.ClassInProgress
	}
	if s, ok := signal(doc); ok && a.status >= 400 && a.status < 500 {
		v = soften(v, s)
	}
	o.Class, o.Result = v.class, v.result
	return o
}

// soften takes the class of a signal, but never turns an unclear status into a rejection.
func soften(status, s verdict) verdict {
	if status.result == holdpoint.Unclear {
		s.result = holdpoint.Unclear
	}
	return s
}

func (c *Connector) classifySuccess(o holdpoint.Outcome, a answer, doc any) holdpoint.Outcome {
	if len(c.cfg.Success) > 0 && !slices.Contains(c.cfg.Success, a.status) {
		o.Class, o.Result = holdpoint.ClassAmbiguous, holdpoint.Unclear
		o.Detail += ", not among the success statuses"
		return o
	}
	if v, refused := refusedInside(doc); refused {
		o.Class, o.Result = v.class, v.result
		o.Detail += ", the body reports an error"
		return o
	}
	o.Result = holdpoint.Accepted
	switch {
	case a.cut:
		o.Class = holdpoint.ClassUnreferenced
	case c.cfg.ProviderID != "":
		if o.ProviderID = providerID(doc, c.cfg.ProviderID); o.ProviderID == "" {
			o.Class = holdpoint.ClassUnreferenced
			o.Detail += ", no provider id"
		}
	}
	return o
}

func statusVerdict(status int) verdict {
	for _, row := range byStatus {
		if row.from <= status && status <= row.to {
			return row.verdict
		}
	}
	return verdict{holdpoint.ClassAmbiguous, holdpoint.Unclear}
}

// signal gives the verdict of the first well-known code in doc.
func signal(doc any) (verdict, bool) {
	if doc == nil {
		return verdict{}, false
	}
	for _, p := range codeAt {
		if v, ok := signals[textAt(doc, p)]; ok {
			return v, true
		}
	}
	return verdict{}, false
}

// refusedInside finds a refusal in a body that came with a success status: Slack's ok=false, GraphQL's errors, Shopify's
// userErrors. A refusal without a known code is unclear, and so is one beside something that was done: one answer may
// speak of several writes.
func refusedInside(doc any) (verdict, bool) {
	top, isObject := doc.(map[string]any)
	if !isObject {
		return verdict{}, false
	}
	ok, hasOK := top["ok"].(bool)
	errs, _ := top["errors"].([]any)
	if (hasOK && !ok) || len(errs) > 0 {
		v, known := signal(doc)
		switch {
		case !known:
			v = verdict{holdpoint.ClassProviderError, holdpoint.Unclear}
		case !hasOK && !onlyErrors(top):
			v.result = holdpoint.Unclear
		}
		return v, true
	}
	return refusedMutations(top["data"])
}

// onlyErrors reports whether an answer holds errors and nothing that could be the result of a write. GraphQL leaves data
// out, or null, where nothing was executed; beside it stand extensions.
func onlyErrors(top map[string]any) bool {
	for name, v := range top {
		if name != "errors" && name != "extensions" && v != nil {
			return false
		}
	}
	return true
}

// refusedMutations finds userErrors. They refuse for certain if every mutation has some and none brought an object.
func refusedMutations(data any) (verdict, bool) {
	mutations, _ := data.(map[string]any)
	refused, clean := false, true
	for _, m := range mutations {
		fields, _ := m.(map[string]any)
		list, _ := fields["userErrors"].([]any)
		refused, clean = refused || len(list) > 0, clean && len(list) > 0
		for name, v := range fields {
			switch v.(type) {
			case map[string]any, []any:
				clean = clean && name == "userErrors"
			}
		}
	}
	switch {
	case !refused:
		return verdict{}, false
	case !clean:
		return verdict{holdpoint.ClassInvalidData, holdpoint.Unclear}, true
	}
	return verdict{holdpoint.ClassInvalidData, holdpoint.Rejected}, true
}

package api

import (
	"net/http"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// Requests and answers of administration.
type (
	policiesAnswer struct {
		Policies []engine.PolicyInfo `json:"policies"`
	}
	activateRequest struct {
		ExpectedActive string `json:"expected_active"` // hash of the policy that is active now, "" if none
	}
	activateAnswer struct {
		Active string `json:"active"`
	}
	usersAnswer struct {
		Users []engine.PersonView `json:"users"`
	}
	addUserRequest struct {
		Email    string `json:"email"`
		Password string `json:"password,omitempty"` // leave it out to be given one, to be changed at the first log-in
	}
	userAnswer struct {
		Email    string `json:"email"`
		Disabled bool   `json:"disabled"`
	}
	grantRequest struct {
		Role string `json:"role"`
	}
	grantAnswer struct {
		Email string `json:"email"`
		Role  string `json:"role"`
	}
	keysAnswer struct {
		Keys []holdpoint.Key `json:"keys"`
	}
	newKeyRequest struct {
		Name   string            `json:"name"`
		Scopes []holdpoint.Scope `json:"scopes"`
	}
	newTokenRequest struct {
		Name   string            `json:"name,omitempty"`
		Scopes []holdpoint.Scope `json:"scopes"`
	}
	meAnswer struct {
		Kind      string            `json:"kind"` // machine or person
		ID        string            `json:"id"`
		Email     string            `json:"email,omitempty"`
		Tenant    string            `json:"tenant"`
		Roles     []string          `json:"roles"`
		Scopes    []holdpoint.Scope `json:"scopes"`
		Assurance string            `json:"assurance,omitempty"`
	}
)

func policyRoutes() []route {
	return []route{
		with(route{pattern: "POST /v1/policies", id: "putPolicy", summary: "Check a policy and store it by its hash; nothing is activated.",
			answers: map[int]any{http.StatusOK: engine.StoredPolicy{}}, codes: []holdpoint.Code{holdpoint.CodeInvalidPolicy}}, putPolicy),
		{pattern: "GET /v1/policies", id: "listPolicies", summary: "The stored policies without their documents.", serve: listPolicies,
			answers: map[int]any{http.StatusOK: policiesAnswer{}}},
		{pattern: "GET /v1/policies/{hash}", id: "getPolicy", summary: "One stored policy with its document; active names the active one.", serve: getPolicy,
			answers: map[int]any{http.StatusOK: engine.PolicyInfo{}}, codes: []holdpoint.Code{holdpoint.CodeNotFound, holdpoint.CodeNoPolicy}},
		with(route{pattern: "POST /v1/policies/{hash}/activate", id: "activatePolicy", summary: "Make a stored policy the active one, if the active one is still the expected one.",
			answers: map[int]any{http.StatusOK: activateAnswer{}},
			codes:   []holdpoint.Code{holdpoint.CodeNotFound, holdpoint.CodePolicyMoved, holdpoint.CodeInvalidPolicy}}, activatePolicy),
	}
}

func putPolicy(c *call, r engine.PolicyProposal) (answer, error) {
	p, err := c.engine().PutPolicy(c.ctx, c.actor, r)
	return ok(p), err
}

func listPolicies(c *call) (answer, error) {
	all, err := c.engine().Policies(c.ctx, c.actor)
	return ok(policiesAnswer{all}), err
}

func getPolicy(c *call) (answer, error) {
	p, err := c.engine().Policy(c.ctx, c.actor, c.path("hash"))
	return ok(p), err
}

func activatePolicy(c *call, r activateRequest) (answer, error) {
	err := c.engine().ActivatePolicy(c.ctx, c.actor, c.path("hash"), r.ExpectedActive)
	return ok(activateAnswer{c.path("hash")}), err
}

func peopleRoutes() []route {
	deleted := map[int]any{http.StatusNoContent: nil}
	admin := []holdpoint.Code{holdpoint.CodeNotFound, holdpoint.CodeNotAllowedNow}
	return []route{
		{pattern: "GET /v1/users", id: "listUsers", summary: "The accounts of the tenant with their roles.", serve: listUsers, answers: map[int]any{http.StatusOK: usersAnswer{}}},
		with(route{pattern: "POST /v1/users", id: "addUser", summary: "Make an account.", answers: map[int]any{http.StatusCreated: engine.NewPerson{}},
			codes: []holdpoint.Code{holdpoint.CodeExists}}, addUser),
		{pattern: "DELETE /v1/users/{email}", id: "disableUser", summary: "Disable an account; its sessions end and its tokens are revoked.", serve: disableUser,
			answers: deleted, codes: admin},
		with(route{pattern: "POST /v1/users/{email}/enable", id: "enableUser", summary: "Enable a disabled account again.", optional: true,
			answers: map[int]any{http.StatusOK: userAnswer{}}, codes: notFound}, enableUser),
		with(route{pattern: "POST /v1/users/{email}/grants", id: "grantRole", summary: "Grant a role beside what the policy says.",
			answers: map[int]any{http.StatusOK: grantAnswer{}}, codes: notFound}, grantRole),
		{pattern: "DELETE /v1/users/{email}/grants/{role}", id: "revokeRole", summary: "Take a granted role back.", serve: revokeRole, answers: deleted, codes: admin},
		{pattern: "GET /v1/keys", id: "listKeys", summary: "Machine keys and people's tokens, without secrets.", serve: listKeys, answers: map[int]any{http.StatusOK: keysAnswer{}}},
		with(route{pattern: "POST /v1/keys", id: "createKey", summary: "Mint a machine key; its secret is shown once.", answers: map[int]any{http.StatusCreated: engine.NewKey{}}}, createKey),
		{pattern: "DELETE /v1/keys/{id}", id: "revokeKey", summary: "Revoke a key at once; a person may revoke tokens of their own.", serve: revokeKey, answers: deleted, codes: notFound},
		with(route{pattern: "POST /v1/me/tokens", id: "createToken", summary: "Mint a token of one's own; its secret is shown once.",
			answers: map[int]any{http.StatusCreated: engine.NewKey{}}}, createToken),
		{pattern: "GET /v1/me", id: "getMe", anyone: true, summary: "Who the token belongs to and what it may do.", serve: getMe, answers: map[int]any{http.StatusOK: meAnswer{}}},
	}
}

func listUsers(c *call) (answer, error) {
	all, err := c.engine().People(c.ctx, c.actor)
	return ok(usersAnswer{all}), err
}

func addUser(c *call, r addUserRequest) (answer, error) {
	p, err := c.engine().AddPerson(c.ctx, c.actor, r.Email, r.Password)
	return created(p), err
}

func disableUser(c *call) (answer, error) {
	return gone, c.engine().SetDisabled(c.ctx, c.actor, c.path("email"), true)
}

func enableUser(c *call, _ nothing) (answer, error) {
	err := c.engine().SetDisabled(c.ctx, c.actor, c.path("email"), false)
	return ok(userAnswer{c.path("email"), false}), err
}

func grantRole(c *call, r grantRequest) (answer, error) {
	err := c.engine().Grant(c.ctx, c.actor, c.path("email"), r.Role)
	return ok(grantAnswer{c.path("email"), r.Role}), err
}

func revokeRole(c *call) (answer, error) {
	return gone, c.engine().Revoke(c.ctx, c.actor, c.path("email"), c.path("role"))
}

func listKeys(c *call) (answer, error) {
	all, err := c.engine().Keys(c.ctx, c.actor)
	return ok(keysAnswer{all}), err
}

func createKey(c *call, r newKeyRequest) (answer, error) {
	k, err := c.engine().CreateKey(c.ctx, c.actor, r.Name, r.Scopes)
	return created(k), err
}

func revokeKey(c *call) (answer, error) {
	return gone, c.engine().RevokeKey(c.ctx, c.actor, c.path("id"))
}

func createToken(c *call, r newTokenRequest) (answer, error) {
	k, err := c.engine().CreateToken(c.ctx, c.actor, c.actor.Email, r.Name, r.Scopes)
	return created(k), err
}

func getMe(c *call) (answer, error) {
	a := c.actor
	return ok(meAnswer{a.Kind, a.ID, a.Email, a.Tenant, a.Roles, a.Scopes, a.Assurance}), nil
}

package simtest

import "strings"

const (
	tenant = "default"
	// secret marks what must show nowhere: it stands in every payload, every draft, every reason and every credential.
	secret = "s3cret"
)

// policyText is the policy of every seed. Its providers differ in what they promise: crm has a look-up, pay and book have
// proved that they honour their key, book has a look-up as well, mail promises nothing.
const policyText = `version: 1
redelivery_window: 30d
roles:
  lead: {users: [LEADS]}
  operator: {users: [ops@acme.example]}
  auditor: {users: [ops@acme.example]}
  switch-owner: {users: [ops@acme.example]}
  policy-owner: {users: [ops@acme.example]}
  tenant-admin: {users: [ops@acme.example]}
connectors:
  crm:
    kind: http
    url: "https://crm.example/CRM"
    headers: {Authorization: "Bearer ${env:CRM_TOKEN}"}
    body: {text: "${effect.payload.text}", ref: "${effect.reference}", to: "${effect.target}"}
    success: [200, 201]
    provider_id: /id
    lookup: {url: "https://crm.example/objects?ref=${effect.reference}", found: "size(response.results) == 1", absent: "size(response.results) == 0", provider_id: /results/0/id, max_lag: 30s, settle: [10s, 1m, 5m, 20m]}
  pay:
    kind: http
    url: "https://pay.example/refunds"
    body: {text: "${effect.payload.text}", to: "${effect.target}"}
    idempotency: {header: Idempotency-Key, max_length: 64, lifetime: 24h}
    success: [200, 201]
  book:
    kind: http
    url: "https://book.example/entries"
    body: {text: "${effect.payload.text}", to: "${effect.target}"}
    idempotency: {header: Idempotency-Key, max_length: 64, lifetime: 1h}
    success: [200, 201]
    provider_id: /id
    lookup: {url: "https://book.example/objects?ref=${effect.reference}", found: "size(response.results) == 1", absent: "size(response.results) == 0", provider_id: /results/0/id, max_lag: 30s, settle: [10s, 1m, 5m, 20m]}
    concurrency: 2
  mail: {kind: http, url: "https://mail.example/send", body: {text: "${effect.payload.text}", to: "${effect.target}"}, success: [200, 201]}
workflows:
  ticket:
    contract: reply.json
    repairs: 1
    lease: {initial: 2m, cap: 10m, steal_alert: 2, steal_cap: 2}
    effects:
      note: {type: crm.note, connector: crm, consequence: crm_change, target: "${event.to}", payload: {text: "${draft.reply}"}}
      reply: {type: email.reply, connector: MAIL, consequence: customer_message, target: "${event.to}", payload: {text: "${draft.reply}"}, after: [note]}
    gate: {pattern: approve_before_act, roles: [lead], approve_by: 4h, execute_by: 6h}
    retry: {run: {attempts: 3, budget: 2h}, effect: {attempts: 3, budget: 1h}}
    expired_keep: 1d
  refund:
    contract: reply.json
    repairs: 1
    initiator: /by
    lease: {initial: 2m, cap: 10m, steal_alert: 2, steal_cap: 2}
    effects:
      refund: {type: pay.refund, connector: pay, consequence: refund, target: "${event.to}", payload: {text: "${draft.reply}"}, when: "draft.reply != 'nothing'"}
    gate: {pattern: approve_before_act, roles: [lead], approve_by: 4h, execute_by: 6h}
    retry: {run: {attempts: 3, budget: 2h}, effect: {attempts: 3, budget: 1h}}
    expired_keep: 1d
WORKFLOWS
`

const orderText = `  order:
    contract: reply.json
    repairs: 1
    lease: {initial: 2m, cap: 10m, steal_alert: 2, steal_cap: 2}
    effects:
      book: {type: order.book, connector: book, consequence: crm_change, target: "${event.to}", payload: {text: "${draft.reply}"}}
    gate: {pattern: approve_before_act, roles: [lead], approve_by: 4h, execute_by: 6h}
    retry: {run: {attempts: 3, budget: 2h}, effect: {attempts: 3, budget: 1h}}
    expired_keep: 1d
`

const replySchema = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","required":["reply"],"additionalProperties":false,"properties":{"reply":{"type":"string","maxLength":LENGTH}}}`

// edition is one policy with its contract.
type edition struct{ document, schema string }

// editions are the policies between which a seed changes: the first is in force at the beginning, the second has another
// connector version, another gate and another contract, the third lacks a workflow and a right.
var editions = []edition{
	makeEdition("notes", "mail", "ana@acme.example, ben@acme.example, cy@acme.example", "500", orderText),
	makeEdition("v2/notes", "mail", "ana@acme.example, cy@acme.example", "400", orderText),
	makeEdition("notes", "crm", "ana@acme.example, ben@acme.example, cy@acme.example", "500", ""),
}

func makeEdition(crm, mail, leads, length, workflows string) edition {
	return edition{strings.NewReplacer("/CRM", "/"+crm, "connector: MAIL", "connector: "+mail, "LEADS", leads, "WORKFLOWS\n", workflows).Replace(policyText),
		strings.ReplaceAll(replySchema, "LENGTH", length)}
}

package demo

// policyDocument is the demo's policy: one connector per kind of provider, one workflow per story.
const policyDocument = `version: 1
redelivery_window: 30d
roles:
  support-lead: {users: [ana@demo.example]}
  operator:     {users: [otto@demo.example]}
  switch-owner: {users: [otto@demo.example]}
  auditor:      {users: [otto@demo.example]}
  policy-owner: {users: [otto@demo.example]}
  tenant-admin: {users: [otto@demo.example]}
connectors:
  mail:
    kind: http
    method: POST
    url: "PROVIDER/mail"
    body: {to: "${effect.target}", text: "${effect.payload.text}", external_ref: "${effect.reference}"}
    success: [200]
    provider_id: /id
    timeout: 2s
  shop:
    kind: http
    method: POST
    url: "PROVIDER/orders"
    body: {to: "${effect.target}", text: "${effect.payload.text}", external_ref: "${effect.reference}"}
    success: [200]
    provider_id: /id
    lookup: {url: "PROVIDER/objects?ref=${effect.reference}", found: "size(response.results) == 1", absent: "size(response.results) == 0", provider_id: /results/0/id, max_lag: 1s, settle: [1s, 2s, 4s]}
    timeout: 1s
  carrier:
    kind: http
    method: POST
    url: "PROVIDER/parcels"
    body: {to: "${effect.target}", text: "${effect.payload.text}", external_ref: "${effect.reference}"}
    success: [200]
    timeout: 2s
  crm:
    kind: http
    method: POST
    url: "PROVIDER/crm"
    body: {to: "${effect.target}", text: "${effect.payload.text}", external_ref: "${effect.reference}"}
    success: [200]
    timeout: 1s
workflows:
  ticket-reply:
    contract: draft.json
    repairs: 2
    fingerprint: {ignore: [/delivered_at]}
    initiator: /created_by
    subject: /customer/email
    lease: {initial: 5m, cap: 30m}
    effects:
      reply: {type: email.reply, connector: mail, consequence: customer_message, target: "${event.customer.email}", payload: {text: "${draft.reply}"}}
    gate: {pattern: approve_before_act, roles: [support-lead], approve_by: 24h, execute_by: 48h}
  order:
    contract: draft.json
    fingerprint: {ignore: [/delivered_at]}
    lease: {initial: 5m, cap: 30m}
    effects:
      book: {type: order.book, connector: shop, consequence: customer_message, target: "${event.customer.email}", payload: {text: "${draft.reply}"}}
    gate: {pattern: approve_before_act, roles: [support-lead], approve_by: 24h, execute_by: 48h}
  parcel:
    contract: draft.json
    lease: {initial: 5m, cap: 30m}
    effects:
      ship: {type: parcel.ship, connector: carrier, consequence: customer_message, target: "${event.customer.email}", payload: {text: "${draft.reply}"}}
    gate: {pattern: approve_before_act, roles: [support-lead], approve_by: 24h, execute_by: 48h}
  crm-note:
    contract: draft.json
    lease: {initial: 5m, cap: 30m}
    effects:
      note: {type: crm.note, connector: crm, consequence: crm_change, target: "${event.customer.email}", payload: {text: "${draft.reply}"}}
    gate: {pattern: approve_before_act, roles: [support-lead], approve_by: 24h, execute_by: 48h}
`

// contract is what a model may answer in every workflow of the demo. It has no recipient: policy names that.
const contract = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["reply", "label"],
  "additionalProperties": false,
  "properties": {
    "reply": {"type": "string", "minLength": 1, "maxLength": 2000},
    "label": {"enum": ["refund", "order", "parcel", "note"]}
  }
}
`

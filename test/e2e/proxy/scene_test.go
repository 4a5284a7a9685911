package proxy

import "github.com/ironlb/ironlb/test/e2e/scene"

const (
	httpPort   = scene.HTTPPort
	udpPort    = scene.UDPPort
	streamPort = scene.StreamPort
	programmed = scene.Programmed
	perRound   = scene.PerRound
)

// Short names for the functions of package scene.
var (
	eventually  = scene.Eventually
	service     = scene.Service
	get         = scene.Get
	withAddress = scene.WithAddress
	edit        = scene.Edit
	policy      = scene.Policy
	ofType      = scene.OfType
	endpoints   = scene.Endpoints
	podMachine  = scene.PodMachine
	external    = scene.External
	internal    = scene.Internal
	nodePort    = scene.NodePort
	at          = scene.At
	by          = scene.By
	answered    = scene.Answered
	seen        = scene.Seen
	refused     = scene.Refused
	dropped     = scene.Dropped
)

from peer.cli.main import main

main()

// A session, a connection that is lost in mid-turn, and a turn that is cancelled: chat [HOST:PORT]

#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "slipstream/v1/orchestrator.grpc.pb.h"

namespace v1 = slipstream::v1;
using Stub = std::unique_ptr<v1::OrchestratorService::Stub>;

void require(bool condition, const std::string& message) {
  if (condition) return;
  std::cerr << "\nwrong: " << message << std::endl;
  std::exit(1);
}

void require(const grpc::Status& status) { require(status.ok(), status.error_message()); }

Stub connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a channel of its own, a connection of its own
  return v1::OrchestratorService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

// One turn as far as its events were received, over however many streams.
struct Turn {
  int number = 0;
  std::vector<int> tokens;
  std::string text;
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;

  bool ended() const { return finish_reason != v1::FINISH_REASON_UNSPECIFIED; }

  void take(const v1::TurnEvent& event) {
    number = event.turn();
    if (event.has_delta()) {
      require(event.delta().token_offset() == static_cast<int>(tokens.size()), "a token is missing or came twice");
      for (int token : event.delta().token_ids()) {
        tokens.push_back(token);
        std::cout << token << ' ' << std::flush;
      }
      text += event.delta().text();
    } else if (event.has_finished()) {
      text += event.finished().text();
      finish_reason = event.finished().finish_reason();
    } else {
      require(event.has_started(), "the turn failed: " + event.failed().error().message());
    }
  }

  // Reads until the turn's end, or until `after_event` says that it has had enough.
  template <class Response>
  void read(grpc::ClientReaderInterface<Response>& stream, const std::function<bool()>& after_event) {
    Response response;
    while (stream.Read(&response)) {
      take(response.event());
      if (!ended() && after_event()) return;
    }
    require(stream.Finish());
  }
};

v1::SendMessageRequest message_of(const std::string& session_id, const std::string& request_id,
                                  const std::string& content) {
  v1::SendMessageRequest request;
  request.set_session_id(session_id);
  request.set_request_id(request_id);
  request.set_content(content);
  return request;
}

int main(int count, char** arguments) {
  const std::string address = count > 1 ? arguments[1] : "127.0.0.1:50051";
  const int most = 1500;
  const auto to_the_end = [] { return false; };
  Stub stub = connect(address);

  v1::CreateSessionRequest create;
  v1::CreateSessionResponse created;
  create.mutable_settings()->set_max_token_count(most);
  create.mutable_settings()->set_ignore_end_tokens(true);
  {
    grpc::ClientContext context;
    require(stub->CreateSession(&context, create, &created));
  }
  const std::string session_id = created.session().id();
  const auto message = message_of(session_id, "first of " + session_id, "What does os.path.join do?");

  Turn first;
  {
    grpc::ClientContext context;
    auto stream = stub->SendMessage(&context, message);
    first.read(*stream, [&] { return first.tokens.size() >= 20; });
    require(!first.ended(), "the turn ended before its connection could be lost");
    context.TryCancel();
    stream->Finish();
  }
  stub.reset();  // the connection goes, the turn goes on

  stub = connect(address);
  std::cout << "\n-- watching on after " << first.tokens.size() << " tokens" << std::endl;
  {
    v1::WatchTurnRequest watch;
    watch.set_session_id(session_id);
    watch.set_turn(first.number);
    watch.set_after_token_count(static_cast<int>(first.tokens.size()));
    grpc::ClientContext context;
    first.read(*stub->WatchTurn(&context, watch), to_the_end);
  }
  require(first.finish_reason == v1::FINISH_REASON_MAX_TOKENS, "the turn did not run to its end");
  require(first.tokens.size() == static_cast<size_t>(most), "the turn has another number of tokens");

  Turn again;  // the same message once more is the same turn
  {
    grpc::ClientContext context;
    again.read(*stub->SendMessage(&context, message), to_the_end);
  }
  require(again.number == first.number && again.tokens == first.tokens && again.text == first.text,
          "the message sent twice was answered twice");

  std::cout << "\n-- a turn that is cancelled" << std::endl;
  Turn second;
  {
    grpc::ClientContext context;
    bool cancelled = false;
    const auto stream = stub->SendMessage(&context, message_of(session_id, "second of " + session_id, "And json.dumps?"));
    second.read(*stream, [&] {
      if (!cancelled) {
        v1::CancelTurnRequest cancel;
        v1::CancelTurnResponse done;
        cancel.set_session_id(session_id);
        cancel.set_turn(second.number);
        grpc::ClientContext cancelling;
        require(stub->CancelTurn(&cancelling, cancel, &done));
        cancelled = true;
      }
      return false;
    });
  }
  require(second.finish_reason == v1::FINISH_REASON_CANCELLED, "the second turn was not cancelled");

  v1::DeleteSessionRequest remove;
  v1::DeleteSessionResponse removed;
  remove.set_session_id(session_id);
  grpc::ClientContext context;
  require(stub->DeleteSession(&context, remove, &removed));
  std::cout << "\nok: " << first.tokens.size() << " tokens, each once; the second turn was cancelled after "
            << second.tokens.size() << std::endl;
  return 0;
}
